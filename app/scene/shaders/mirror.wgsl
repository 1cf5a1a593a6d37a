// Shows the eye images on another target. Instance 0 draws both eyes, instance 1 the left one.

@group(0) @binding(0) var eyes: texture_2d<f32>;
@group(0) @binding(1) var smooth_sampler: sampler;

override encode_srgb: bool;

struct MirrorVertex {
    @builtin(position) clip: vec4f,
    @location(0) uv: vec2f,
    @location(1) @interpolate(flat) last: f32, // u of the last texel of what is shown
}

@vertex
fn mirror_vertex(
    @builtin(vertex_index) index: u32, @builtin(instance_index) left_only: u32
) -> MirrorVertex {
    let at = vec2f(f32(index & 1u), f32(index >> 1u)) * 2.0;
    let width = select(1.0, 0.5, left_only == 1u);
    let last = width - 0.5 / f32(textureDimensions(eyes).x);
    return MirrorVertex(vec4f(at * 2.0 - 1.0, 0.0, 1.0), vec2f(at.x * width, 1.0 - at.y), last);
}

fn srgb_from_linear(colour: vec3f) -> vec3f {
    let bent = 1.055 * pow(colour, vec3f(1.0 / 2.4)) - 0.055;
    return select(bent, colour * 12.92, colour <= vec3f(0.0031308));
}

fn tap(uv: vec2f, last: f32) -> vec3f {
    return textureSampleLevel(eyes, smooth_sampler, vec2f(min(uv.x, last), uv.y), 0.0).rgb;
}

@fragment
fn mirror_fragment(in: MirrorVertex) -> @location(0) vec4f {
    // Four taps over the pixel: the window is usually smaller than the eye images.
    let across = 0.25 * dpdx(in.uv);
    let down = 0.25 * dpdy(in.uv);
    let colour = 0.25 * (tap(in.uv - across - down, in.last) + tap(in.uv + across - down, in.last)
        + tap(in.uv - across + down, in.last) + tap(in.uv + across + down, in.last));
    return vec4f(select(colour, srgb_from_linear(colour), encode_srgb), 1.0);
}
