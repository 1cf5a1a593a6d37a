// Floor and backdrop in one full-screen triangle: every pixel is shaded once, by its ray.

struct RoomVertex {
    @builtin(position) clip: vec4f,
    @location(0) ray: vec3f,
    @location(1) @interpolate(flat) left: vec3f,
    @location(2) @interpolate(flat) centre: vec3f,
    @location(3) @interpolate(flat) right: vec3f,
}

const ZENITH = vec3f(0.0022, 0.0028, 0.0060);
const HORIZON = vec3f(0.0150, 0.0220, 0.0420);
const FLOOR = vec3f(0.0050, 0.0068, 0.0115);
const LINE = vec3f(0.0300, 0.0480, 0.0800);
const LINE_SPACING = 0.5;
const LINE_WIDTH = 0.005; // from the middle of a line to its edge

@vertex
fn room_vertex(@builtin(vertex_index) index: u32) -> RoomVertex {
    let ndc = vec2f(f32(index & 1u), f32(index >> 1u)) * 4.0 - 1.0;
    return RoomVertex(
        vec4f(ndc, 1.0, 1.0),
        eye.rays * vec3f(ndc, 1.0),
        picture_light(0u),
        picture_light(1u),
        picture_light(2u),
    );
}

// Share of a pixel covered by grid lines: lines thinner than a pixel fade instead of flickering.
fn grid_lines(point: vec2f, pixel: vec2f) -> f32 {
    let drawn = max(vec2f(LINE_WIDTH), pixel);
    let distance = abs(fract(point / LINE_SPACING - 0.5) - 0.5) * LINE_SPACING;
    let line = saturate((drawn - distance) / pixel + 0.5) * LINE_WIDTH / drawn;
    return max(line.x, line.y);
}

// Light that a panel throws on the floor around its foot.
fn floor_light(point: vec2f, panel: Panel, colour: vec3f) -> vec3f {
    let across = panel.model[0].xz;
    let to_point = point - panel.model[3].xz;
    let width_squared = max(dot(across, across), 1e-4); // a panel may stand on its side
    let along = clamp(dot(to_point, across) / width_squared, -0.5, 0.5);
    let away = to_point - along * across;
    let fall = 1.0 / (1.0 + 1.1 * dot(away, away));
    return colour * fall * fall;
}

@fragment
fn room_fragment(in: RoomVertex) -> @location(0) vec4f {
    let ray = normalize(in.ray);

    let height = max(ray.y, 0.0);
    let ahead = max(-ray.z, 0.0);
    let front = ahead * ahead;
    let fade = exp(-3.0 * height);
    let haze = mix(ZENITH, HORIZON, fade * (0.4 + 0.6 * front));
    let backdrop = haze + 0.020 * front * front * front * fade * (in.left + in.centre + in.right);

    let far = max(eye.position.y, 0.0) / max(-ray.y, 1e-4);
    let point = eye.position.xz + far * ray.xz;
    let pixel = max(fwidth(point), vec2f(1e-5));
    let light = floor_light(point, panels[0], in.left)
        + floor_light(point, panels[1], in.centre)
        + floor_light(point, panels[2], in.right);
    let lit = FLOOR + grid_lines(point, pixel) * (LINE + 0.24 * light) + 0.030 * light;
    let ground = mix(backdrop, lit, exp(-0.016 * far * far));

    let is_ground = ray.y < 0.0 && eye.position.y > 0.0;
    var colour = select(backdrop, ground, is_ground);
    // Half a step of noise hides the bands that 8 bits leave in dark gradients.
    let noise = fract(52.9829189 * fract(dot(in.clip.xy, vec2f(0.06711056, 0.00583715)))) - 0.5;
    if eye.haze_samples > 0.0 {
        let distance = select(HAZE_END, far, is_ground);
        let glow = Glow(in.left, in.centre, in.right);
        let offset = noise + 0.5;
        colour += glowing_haze(eye.position, ray, distance, eye.haze_samples, offset, glow);
    }
    return vec4f(colour + noise * sqrt(colour) * (2.0 / 255.0), 1.0);
}
