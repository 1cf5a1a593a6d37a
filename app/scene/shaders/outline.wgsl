// A line of light around a panel that a hand points at or holds. Drawn before the panel itself.

const CORNER = 0.036;
const GAP = 0.012;       // from the panel's edge to the middle of the line
const HALF_LINE = 0.004;
const GLOW = 0.07;
const LIGHT = vec3f(0.13, 0.60, 0.90);

struct OutlineVertex {
    @builtin(position) clip: vec4f,
    @location(0) local: vec2f,
    @location(1) @interpolate(flat) half_size: vec2f,
    @location(2) @interpolate(flat) strength: f32,
}

@vertex
fn outline_vertex(
    @builtin(vertex_index) corner: u32, @builtin(instance_index) index: u32
) -> OutlineVertex {
    let panel = panels[index];
    let at = panel_corner(panel, corner, GAP + GLOW);
    return OutlineVertex(at.clip, at.local, 0.5 * panel.size, panel.highlight);
}

@fragment
fn outline_fragment(in: OutlineVertex) -> @location(0) vec4f {
    let distance = rounded_rectangle(in.local, in.half_size, CORNER);
    let pixel = fwidth(distance);
    // A line thinner than a pixel fades instead of flickering.
    let drawn = max(HALF_LINE, 0.5 * pixel);
    let line = inside(abs(distance - GAP) - drawn, pixel) * HALF_LINE / drawn;
    let fall = saturate(1.0 - abs(distance - GAP) / GLOW);
    let glow = select(0.0, 0.4 * fall * fall, distance > 0.0);
    return in.strength * vec4f(LIGHT * max(line, glow), line);
}
