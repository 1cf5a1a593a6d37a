// The part of an eye that its wearer cannot see: triangles at the near plane, depth only, so that
// whatever is drawn later fails the depth test there before it is shaded.

@vertex
fn hidden_vertex(@location(0) tangents: vec2f) -> @builtin(position) vec4f {
    return vec4f(tangents * eye.from_tangents.xy + eye.from_tangents.zw, 0.0, 1.0);
}

@fragment
fn hidden_fragment() -> @location(0) vec4f {
    return vec4f(0.0); // never written
}
