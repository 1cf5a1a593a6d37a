// Group 1: the three pictures. Two of them are network outputs, read where the network left them.

@group(1) @binding(0) var camera: texture_2d<f32>;
@group(1) @binding(1) var smooth_sampler: sampler;
@group(1) @binding(2) var<storage, read> painted: array<f32>;    // [image_size, image_size, 3]
@group(1) @binding(3) var<storage, read> components: array<f32>; // [grid, grid, 3]

override image_size: i32;
override grid: i32;

fn painted_texel(texel: vec2i) -> vec3f {
    let at = clamp(texel, vec2i(0), vec2i(image_size - 1));
    let index = u32(at.y * image_size + at.x) * 3u;
    return saturate(vec3f(painted[index], painted[index + 1u], painted[index + 2u]));
}

fn components_texel(texel: vec2i) -> vec3f {
    let at = clamp(texel, vec2i(0), vec2i(grid - 1));
    let index = u32(at.y * grid + at.x) * 3u;
    return saturate(vec3f(components[index], components[index + 1u], components[index + 2u]));
}

// Mean colour of a picture from 8 by 8 samples, linear light: what the panel casts on the room.
fn picture_light(picture: u32) -> vec3f {
    if picture == 0u {
        return textureSampleLevel(camera, smooth_sampler, vec2f(0.5), 16.0).rgb;
    }
    var sum = vec3f(0.0);
    for (var index = 0; index < 64; index++) {
        let at = vec2f(f32(index % 8) + 0.5, f32(index / 8) + 0.5) / 8.0;
        if picture == 1u {
            sum += painted_texel(vec2i(at * f32(image_size)));
        } else {
            sum += components_texel(vec2i(at * f32(grid)));
        }
    }
    return linear_from_srgb(sum / 64.0);
}
