// The three pictures: a soft halo behind each, then the picture inside a thin rounded frame.

const CORNER = 0.035;
const FRAME = 0.007;
const FRAME_COLOUR = vec3f(0.22, 0.28, 0.38);
const HALO = 0.34;

@vertex
fn halo_vertex(
    @builtin(vertex_index) corner: u32, @builtin(instance_index) picture: u32
) -> PanelVertex {
    var out = panel_corner(panels[picture], corner, HALO);
    out.light = picture_light(picture);
    return out;
}

@fragment
fn halo_fragment(in: PanelVertex) -> @location(0) vec4f {
    let half_size = 0.5 * panels[0].size;
    let distance = max(rounded_rectangle(in.local, half_size, CORNER), 0.0);
    let fall = saturate(1.0 - distance / HALO);
    return vec4f(in.light * 0.10 * fall * fall * fall, 0.0);
}

@vertex
fn picture_vertex(
    @builtin(vertex_index) corner: u32, @builtin(instance_index) picture: u32
) -> PanelVertex {
    return panel_corner(panels[picture], corner, 2.0 * FRAME);
}

// Place on the picture, 0..1, y down, of a point on the panel.
fn picture_uv(local: vec2f) -> vec2f {
    return vec2f(0.5, -0.5) * local / (0.5 * panels[0].size) + 0.5;
}

fn framed(colour: vec3f, local: vec2f, front: bool) -> vec4f {
    let distance = rounded_rectangle(local, 0.5 * panels[0].size, CORNER);
    let pixel = fwidth(distance);
    let shown = select(vec3f(0.004), colour, front);
    let surface = mix(FRAME_COLOUR, shown, inside(distance, pixel));
    return vec4f(surface, 1.0) * inside(distance - FRAME, pixel);
}

@fragment
fn camera_fragment(in: PanelVertex, @builtin(front_facing) front: bool) -> @location(0) vec4f {
    return framed(textureSample(camera, smooth_sampler, picture_uv(in.local)).rgb, in.local, front);
}

fn painted_bilinear(uv: vec2f) -> vec3f {
    let at = uv * f32(image_size) - 0.5;
    let corner = vec2i(floor(at));
    let part = fract(at);
    let upper = mix(painted_texel(corner), painted_texel(corner + vec2i(1, 0)), part.x);
    let lower = mix(painted_texel(corner + vec2i(0, 1)), painted_texel(corner + 1), part.x);
    return mix(upper, lower, part.y);
}

@fragment
fn painted_fragment(in: PanelVertex, @builtin(front_facing) front: bool) -> @location(0) vec4f {
    // Four taps over the pixel: on a small eye image one pixel spans more than one texel.
    let uv = picture_uv(in.local);
    let across = 0.25 * dpdx(uv);
    let down = 0.25 * dpdy(uv);
    let colour = 0.25 * (painted_bilinear(uv - across - down) + painted_bilinear(uv + across - down)
        + painted_bilinear(uv - across + down) + painted_bilinear(uv + across + down));
    return framed(linear_from_srgb(colour), in.local, front);
}

// Weights of the four neighbours in a Catmull-Rom spline: smooth and through the values given.
fn spline_weights(part: f32) -> vec4f {
    let rest = 1.0 - part;
    return 0.5 * vec4f(
        -part * rest * rest,
        2.0 + part * part * (3.0 * part - 5.0),
        2.0 + rest * rest * (3.0 * rest - 5.0),
        -rest * part * part,
    );
}

@fragment
fn components_fragment(in: PanelVertex, @builtin(front_facing) front: bool) -> @location(0) vec4f {
    let at = picture_uv(in.local) * f32(grid) - 0.5;
    let corner = vec2i(floor(at)) - 1;
    let part = fract(at);
    let weight_x = spline_weights(part.x);
    let weight_y = spline_weights(part.y);
    var colour = vec3f(0.0);
    for (var row = 0; row < 4; row++) {
        let line = corner + vec2i(0, row);
        colour += weight_y[row] * (weight_x.x * components_texel(line)
            + weight_x.y * components_texel(line + vec2i(1, 0))
            + weight_x.z * components_texel(line + vec2i(2, 0))
            + weight_x.w * components_texel(line + vec2i(3, 0)));
    }
    return framed(linear_from_srgb(colour), in.local, front);
}
