use gyrus_tensor::DType;

/// The type ids of GGUF (`ggml_type`). The gaps are types that ggml removed.
const IDS: &[(u32, DType)] = &[
    (0, DType::F32),
    (1, DType::F16),
    (2, DType::Q4_0),
    (3, DType::Q4_1),
    (6, DType::Q5_0),
    (7, DType::Q5_1),
    (8, DType::Q8_0),
    (9, DType::Q8_1),
    (10, DType::Q2_K),
    (11, DType::Q3_K),
    (12, DType::Q4_K),
    (13, DType::Q5_K),
    (14, DType::Q6_K),
    (15, DType::Q8_K),
    (16, DType::IQ2_XXS),
    (17, DType::IQ2_XS),
    (18, DType::IQ3_XXS),
    (19, DType::IQ1_S),
    (20, DType::IQ4_NL),
    (21, DType::IQ3_S),
    (22, DType::IQ2_S),
    (23, DType::IQ4_XS),
    (24, DType::I8),
    (25, DType::I16),
    (26, DType::I32),
    (27, DType::I64),
    (28, DType::F64),
    (29, DType::IQ1_M),
    (30, DType::BF16),
    (34, DType::TQ1_0),
    (35, DType::TQ2_0),
    (39, DType::MXFP4),
    (40, DType::NVFP4),
    (41, DType::Q1_0),
    (42, DType::Q2_0),
];

/// The type of a GGUF type id.
pub(crate) fn dtype_of(id: u32) -> Option<DType> {
    IDS.iter().find(|(i, _)| *i == id).map(|(_, dtype)| *dtype)
}

/// The GGUF type id of a type; `None` if GGUF does not have it.
pub(super) fn id_of(dtype: DType) -> Option<u32> {
    IDS.iter().find(|(_, d)| *d == dtype).map(|(id, _)| *id)
}

/// The name of a type that ggml removed, for the error message.
pub(super) fn withdrawn(id: u32) -> Option<&'static str> {
    match id {
        4 => Some("Q4_2"),
        5 => Some("Q4_3"),
        31..=33 => Some("repacked Q4_0"),
        36..=38 => Some("repacked IQ4_NL"),
        _ => None,
    }
}
