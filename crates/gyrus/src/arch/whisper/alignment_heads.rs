use super::config::WhisperConfig;

/// A published model: layers and heads of its decoder, mel bands, whether it knows English only, and its heads that follow
/// the speech, as its authors found them.
struct Published {
    layers: usize,
    heads: usize,
    mels: usize,
    english: bool,
    aligned: &'static [(usize, usize)],
}

const PUBLISHED: [Published; 11] = [
    of(4, 6, 80, true, &[(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)]),
    of(4, 6, 80, false, &[(2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)]),
    of(6, 8, 80, true, &[(3, 3), (4, 7), (5, 1), (5, 5), (5, 7)]),
    of(6, 8, 80, false, &[(3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)]),
    of(
        12,
        12,
        80,
        true,
        &[
            (6, 6),
            (7, 0),
            (7, 3),
            (7, 8),
            (8, 2),
            (8, 5),
            (8, 7),
            (9, 0),
            (9, 4),
            (9, 8),
            (9, 10),
            (10, 0),
            (10, 1),
            (10, 2),
            (10, 3),
            (10, 6),
            (10, 11),
            (11, 2),
            (11, 4),
        ],
    ),
    of(12, 12, 80, false, &[(5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5)]),
    of(
        24,
        16,
        80,
        true,
        &[
            (11, 4),
            (14, 1),
            (14, 12),
            (14, 14),
            (15, 4),
            (16, 0),
            (16, 4),
            (16, 9),
            (17, 12),
            (17, 14),
            (18, 7),
            (18, 10),
            (18, 15),
            (20, 0),
            (20, 3),
            (20, 9),
            (20, 14),
            (21, 12),
        ],
    ),
    of(24, 16, 80, false, &[(13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)]),
    // The first two large models have one shape. These are the heads of the second.
    of(
        32,
        20,
        80,
        false,
        &[
            (10, 12),
            (13, 17),
            (16, 11),
            (16, 12),
            (16, 13),
            (17, 15),
            (17, 16),
            (18, 4),
            (18, 11),
            (18, 19),
            (19, 11),
            (21, 2),
            (21, 3),
            (22, 3),
            (22, 9),
            (22, 12),
            (23, 5),
            (23, 7),
            (23, 13),
            (25, 5),
            (26, 1),
            (26, 12),
            (27, 15),
        ],
    ),
    of(
        32,
        20,
        128,
        false,
        &[(7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1), (25, 6)],
    ),
    of(4, 20, 128, false, &[(2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)]),
];

const fn of(
    layers: usize,
    heads: usize,
    mels: usize,
    english: bool,
    aligned: &'static [(usize, usize)],
) -> Published {
    Published { layers, heads, mels, english, aligned }
}

/// The heads of a file that does not list them: those of the published model of its shape, else all heads of the upper half
/// of the layers.
pub(super) fn of_model(config: &WhisperConfig, english: bool) -> Vec<(usize, usize)> {
    let same = |model: &&Published| {
        (model.layers, model.heads, model.mels, model.english)
            == (config.text_layers, config.text_heads, config.mels, english)
    };
    match PUBLISHED.iter().find(same) {
        Some(model) => model.aligned.to_vec(),
        None => (config.text_layers / 2..config.text_layers)
            .flat_map(|layer| (0..config.text_heads).map(move |head| (layer, head)))
            .collect(),
    }
}
