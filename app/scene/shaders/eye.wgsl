// Group 0, shared by everything in the room: the eye being drawn and the panels.

struct Eye {
    view_projection: mat4x4f,
    rays: mat3x3f, // world direction of a pixel: rays * (ndc, 1)
    position: vec3f,
    haze_samples: f32, // along each ray; 0: no haze
    from_tangents: vec4f, // ndc = tangents * xy + zw
}

struct Panel {
    model: mat4x4f, // unit square to world
    size: vec2f,    // metres
    highlight: f32, // 0: none; 1: held
    unused: f32,
}

@group(0) @binding(0) var<uniform> eye: Eye;
@group(0) @binding(1) var<uniform> panels: array<Panel, 7>;

struct PanelVertex {
    @builtin(position) clip: vec4f,
    @location(0) local: vec2f, // metres from the panel's centre
    @location(1) @interpolate(flat) light: vec3f,
}

// Corner of a panel enlarged by `margin` metres on every side; six corners make two triangles.
fn panel_corner(panel: Panel, corner: u32, margin: f32) -> PanelVertex {
    let right = f32(corner == 1u || corner == 2u || corner == 4u);
    let top = f32(corner == 2u || corner == 4u || corner == 5u);
    let local = (vec2f(right, top) - 0.5) * (panel.size + 2.0 * margin);
    let world = panel.model * vec4f(local / panel.size, 0.0, 1.0);
    return PanelVertex(eye.view_projection * world, local, vec3f(0.0));
}

// Signed distance to a rectangle with round corners, negative inside.
fn rounded_rectangle(point: vec2f, half_size: vec2f, radius: f32) -> f32 {
    let outside = abs(point) - half_size + radius;
    return length(max(outside, vec2f(0.0))) + min(max(outside.x, outside.y), 0.0) - radius;
}

// Share of a pixel that lies inside an edge at `distance` when the pixel is `pixel` wide.
fn inside(distance: f32, pixel: f32) -> f32 {
    return saturate(0.5 - distance / pixel);
}

fn linear_from_srgb(colour: vec3f) -> vec3f {
    let value = saturate(colour);
    return select(pow((value + 0.055) / 1.055, vec3f(2.4)), value / 12.92, value <= vec3f(0.04045));
}
