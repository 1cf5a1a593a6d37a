// The wearer's hands: a small body at each grip and a thin ray along each aim; opaque.

struct Hand {
    grip: mat4x4f, // body to world; without size while the grip is not tracked
    aim: mat4x4f,  // ray to world, ahead is -z; without size while the aim is not tracked
    ray: f32,      // metres
    tip: f32,      // radius of the ray's end, relative to that of its beginning
    grabs: f32,    // 1: grabbing
    unused: f32,
}

@group(1) @binding(0) var<uniform> hands: array<Hand, 2>;

const TURN = 6.2831853;
const ROWS = 10u;
const COLUMNS = 16u;
const BODY_VERTICES = ROWS * COLUMNS * 6u;
const RADII = vec3f(0.017, 0.020, 0.052); // of the body, metres
const RAY_SIDES = 6u;
const RAY_BEGIN = 0.06;
const RAY_RADIUS = 0.0022;

const BODY = vec3f(0.30, 0.36, 0.46);
const RAY = vec3f(0.20, 0.34, 0.48);
const GRABBING = vec3f(0.13, 0.60, 0.90);
const LAMP = vec3f(0.31, 0.86, 0.41); // direction towards the light

struct HandVertex {
    @builtin(position) clip: vec4f,
    @location(0) normal: vec3f,
    @location(1) to_eye: vec3f,
    @location(2) @interpolate(flat) colour: vec3f,
    @location(3) @interpolate(flat) shading: f32, // 0: the ray shines by itself
}

// Column and row of a corner of a grid of quads, two triangles each, `columns` quads in a row.
fn grid_corner(index: u32, columns: u32) -> vec2u {
    let quad = index / 6u;
    let corner = index % 6u;
    let right = u32(corner == 1u || corner == 2u || corner == 4u);
    let below = u32(corner == 2u || corner == 4u || corner == 5u);
    return vec2u(quad % columns + right, quad / columns + below);
}

fn body_vertex(index: u32, hand: Hand) -> HandVertex {
    let at = vec2f(grid_corner(index, COLUMNS));
    let around = TURN * at.x / f32(COLUMNS);
    let down = 0.5 * TURN * at.y / f32(ROWS);
    let ball = vec3f(cos(around) * sin(down), sin(around) * sin(down), cos(down));
    let world = hand.grip * vec4f(ball * RADII, 1.0);
    let normal = (hand.grip * vec4f(ball / RADII * RADII.x, 0.0)).xyz;
    let colour = mix(BODY, GRABBING, hand.grabs);
    return HandVertex(
        eye.view_projection * world, normal, eye.position - world.xyz, colour, 1.0
    );
}

fn ray_vertex(index: u32, hand: Hand) -> HandVertex {
    let at = grid_corner(index, RAY_SIDES);
    let around = TURN * f32(at.x) / f32(RAY_SIDES);
    let ahead = select(min(RAY_BEGIN, hand.ray), hand.ray, at.y == 1u);
    let radius = RAY_RADIUS * select(1.0, hand.tip, at.y == 1u);
    let local = vec4f(cos(around) * radius, sin(around) * radius, -ahead, 1.0);
    let colour = mix(RAY, GRABBING, hand.grabs);
    return HandVertex(
        eye.view_projection * hand.aim * local, vec3f(0.0, 1.0, 0.0), vec3f(0.0), colour, 0.0
    );
}

@vertex
fn hand_vertex(
    @builtin(vertex_index) index: u32, @builtin(instance_index) which: u32
) -> HandVertex {
    if index < BODY_VERTICES {
        return body_vertex(index, hands[which]);
    }
    return ray_vertex(index - BODY_VERTICES, hands[which]);
}

@fragment
fn hand_fragment(in: HandVertex) -> @location(0) vec4f {
    if in.shading == 0.0 {
        return vec4f(in.colour, 1.0);
    }
    let normal = normalize(in.normal);
    let lamp = saturate(0.5 + 0.5 * dot(normal, LAMP));
    let rim = 1.0 - saturate(dot(normal, normalize(in.to_eye)));
    let light = 0.10 + 0.90 * lamp * lamp + 0.55 * rim * rim * rim;
    return vec4f(in.colour * light, 1.0);
}
