/// The name that transformers gives to a tensor of OpenAI's name.
pub(super) fn hugging_face(name: &str) -> String {
    const PARTS: [(&str, &str); 15] = [
        (".blocks.", ".layers."),
        // These contain shorter ones that follow.
        (".cross_attn_ln.", ".encoder_attn_layer_norm."),
        (".attn_ln.", ".self_attn_layer_norm."),
        (".mlp_ln.", ".final_layer_norm."),
        (".cross_attn.", ".encoder_attn."),
        (".attn.", ".self_attn."),
        (".query.", ".q_proj."),
        (".key.", ".k_proj."),
        (".value.", ".v_proj."),
        (".out.", ".out_proj."),
        (".mlp.0.", ".fc1."),
        (".mlp.2.", ".fc2."),
        (".ln_post.", ".layer_norm."),
        (".ln.", ".layer_norm."),
        (".token_embedding.", ".embed_tokens."),
    ];
    let renamed = PARTS.iter().fold(name.to_owned(), |name, (from, to)| name.replacen(from, to, 1));
    renamed.replacen(".positional_embedding", ".embed_positions.weight", 1)
}

#[cfg(test)]
mod tests {
    use super::hugging_face;

    #[test]
    fn tensors_have_the_names_of_transformers() {
        for (name, expected) in [
            ("encoder.conv1.weight", "encoder.conv1.weight"),
            ("encoder.positional_embedding", "encoder.embed_positions.weight"),
            ("encoder.blocks.3.attn_ln.bias", "encoder.layers.3.self_attn_layer_norm.bias"),
            ("encoder.blocks.3.attn.out.weight", "encoder.layers.3.self_attn.out_proj.weight"),
            ("decoder.blocks.0.cross_attn_ln.weight", "decoder.layers.0.encoder_attn_layer_norm.weight"),
            ("decoder.blocks.0.cross_attn.key.weight", "decoder.layers.0.encoder_attn.k_proj.weight"),
            ("decoder.blocks.10.mlp_ln.bias", "decoder.layers.10.final_layer_norm.bias"),
            ("decoder.blocks.10.mlp.2.bias", "decoder.layers.10.fc2.bias"),
            ("encoder.ln_post.weight", "encoder.layer_norm.weight"),
            ("decoder.ln.weight", "decoder.layer_norm.weight"),
            ("decoder.token_embedding.weight", "decoder.embed_tokens.weight"),
        ] {
            assert_eq!(hugging_face(name), expected);
        }
    }
}
