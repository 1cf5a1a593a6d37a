// Thin mist in the room, lit by the three pictures: single scattering, integrated along the ray.

const EXTINCTION = 0.35; // per metre
const HAZE_END = 14.0;   // metres: less than a hundredth of the light comes from beyond
const MIST = vec3f(0.36, 0.42, 0.54); // what it scatters of red, green and blue
const FORWARD = 0.45;    // Henyey-Greenstein asymmetry: mist scatters mostly onwards

struct Glow {
    left: vec3f,
    centre: vec3f,
    right: vec3f,
}

// A gyroid: wisps without a lattice, -1.5..1.5.
fn gyroid(at: vec3f) -> f32 {
    return dot(sin(at), cos(at.zxy));
}

// Density of the mist relative to its mean at eye level; it lies on the floor.
fn haze_density(point: vec3f) -> f32 {
    let bent = point + 0.25 * sin(2.1 * point.yzx);
    let wisps = max(0.8 + 0.6 * gyroid(2.9 * bent) + 0.4 * gyroid(6.7 * bent + 1.7), 0.0);
    return wisps * wisps * exp(0.45 * (1.6 - max(point.y, 0.0)));
}

// Light of a picture that a unit of mist at `point` sends back along the view ray.
fn scattered(point: vec3f, ray: vec3f, panel: Panel, colour: vec3f) -> vec3f {
    let from_centre = point - panel.model[3].xyz;
    let across = panel.model[0].xyz / panel.size.x;
    let up = panel.model[1].xyz / panel.size.y;
    let local = vec2f(dot(from_centre, across), dot(from_centre, up));
    let nearest = clamp(local, -0.5 * panel.size, 0.5 * panel.size);
    let travelled = from_centre - nearest.x * across - nearest.y * up;
    let distance_squared = dot(travelled, travelled) + 1e-4;
    let direction = travelled * inverseSqrt(distance_squared);

    let area = panel.size.x * panel.size.y;
    let facing = max(dot(direction, panel.model[2].xyz), 0.0);
    let received = facing * area / (area + 3.14159265 * distance_squared);
    let spread = 1.0 + FORWARD * FORWARD + 2.0 * FORWARD * dot(direction, ray);
    let phase = (1.0 - FORWARD * FORWARD) * inverseSqrt(spread * spread * spread);
    return colour * received * received * phase;
}

// Light scattered towards the eye on the first `distance` metres of a ray, from `samples` points.
// The points are as dense as the mist is transparent up to them, so every one counts the same.
// `offset`, 0..1, differs between pixels: few samples give grain instead of bands.
fn glowing_haze(
    origin: vec3f, ray: vec3f, distance: f32, samples: f32, offset: f32, glow: Glow
) -> vec3f {
    let absorbed = 1.0 - exp(-EXTINCTION * min(distance, HAZE_END));
    var sum = vec3f(0.0);
    for (var index = 0.0; index < samples; index += 1.0) {
        let along = -log(1.0 - absorbed * (index + offset) / samples) / EXTINCTION;
        let point = origin + along * ray;
        let light = scattered(point, ray, panels[0], glow.left)
            + scattered(point, ray, panels[1], glow.centre)
            + scattered(point, ray, panels[2], glow.right);
        sum += haze_density(point) * light;
    }
    return MIST * absorbed * sum / samples;
}
