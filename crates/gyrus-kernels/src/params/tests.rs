use super::*;

#[test]
fn sizes_and_offsets_are_those_naga_computes() {
    for layout in ALL {
        let module = naga::front::wgsl::parse_str(layout.wgsl).unwrap();
        let (_, ty) = module.types.iter().find(|(_, ty)| ty.name.as_deref() == Some(layout.name)).unwrap();
        let naga::TypeInner::Struct { members, span } = &ty.inner else {
            panic!("{} is a struct", layout.name)
        };
        assert_eq!(*span as usize, layout.size, "{}", layout.name);
        assert_eq!(layout.size % 16, 0, "{}", layout.name);
        let found: Vec<(&str, usize)> =
            members.iter().map(|m| (m.name.as_deref().unwrap(), m.offset as usize)).collect();
        let expected: Vec<(&str, usize)> = layout.fields.iter().map(|(name, _, at)| (*name, *at)).collect();
        assert_eq!(found, expected, "{}", layout.name);
    }
}

/// Offsets that hosts patch, and sizes that other programs rely on.
#[test]
fn documented_offsets_hold() {
    use std::mem::offset_of;
    assert_eq!((size_of::<RoPEParams>(), offset_of!(RoPEParams, pos_offset)), (32, 12));
    assert_eq!((size_of::<RoPEQKVWriteParams>(), offset_of!(RoPEQKVWriteParams, pos)), (48, 12));
    assert_eq!(offset_of!(RoPEQKVWriteParams, freq_scale), 32);
    assert_eq!((size_of::<AttentionParams>(), offset_of!(AttentionParams, kv_seq_len)), (32, 4));
    assert_eq!((size_of::<KVCacheWriteParams>(), offset_of!(KVCacheWriteParams, pos)), (32, 12));
    assert_eq!((size_of::<GEMVKVParams>(), offset_of!(GEMVKVParams, pos)), (32, 16));
    assert_eq!((size_of::<GumbelTopKParams>(), offset_of!(GumbelTopKParams, position)), (32, 8));
    let of_sixteen = [
        "ElementwiseParams",
        "RMSNormParams",
        "LayerNormParams",
        "SoftmaxParams",
        "EmbeddingParams",
        "TemperatureScaleParams",
        "RepetitionPenaltyParams",
        "QKVSplitParams",
        "WhisperSuppressParams",
        "NormEpsParams",
        "RoPEDims",
        "RoPEBase",
        "QuantizeParams",
        "SelectParams",
        "F16RowsParams",
        "ScaleParams",
        "GateByParams",
        "ColumnNormParams",
        "ExpertTilesParams",
    ];
    for layout in ALL {
        let expected = match layout.name {
            "SlotState" => 96,
            "RoPEQKVWriteParams" | "AttendParams" | "DeltaParams" => 48,
            name if of_sixteen.contains(&name) => 16,
            _ => 32,
        };
        assert_eq!(layout.size, expected, "{}", layout.name);
    }
}
