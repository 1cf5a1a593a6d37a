// Captions and HUD: an image with straight alpha, drawn on a panel.

@group(1) @binding(0) var image: texture_2d<f32>;
@group(1) @binding(1) var smooth_sampler: sampler;

@vertex
fn label_vertex(
    @builtin(vertex_index) corner: u32, @builtin(instance_index) panel: u32
) -> PanelVertex {
    var out = panel_corner(panels[panel], corner, 0.0);
    out.local = out.local / panels[panel].size; // the shader below works on the unit square
    return out;
}

@fragment
fn label_fragment(in: PanelVertex) -> @location(0) vec4f {
    let uv = in.local * vec2f(1.0, -1.0) + 0.5;
    let colour = textureSample(image, smooth_sampler, uv);
    return vec4f(colour.rgb, 1.0) * colour.a;
}
