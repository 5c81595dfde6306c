//! The rule by which mat-vecs divide their work gives forms that can be launched.

use gyrus_kernels::WeightLayout;
use gyrus_kernels::call::{MatVecCall, MatVecSizes, MatVecTuning, Results};
use gyrus_kernels::grid::dtypes;
use gyrus_kernels::shader::Rungs;
use gyrus_tensor::DType;

/// Every type and shape has a default tuning for every size of workgroups, and the order of its sums depends neither on the
/// device nor on the number of rows.
#[test]
fn default_tunings_are_valid_for_every_shape() {
    let sizes = MatVecSizes::H200;
    for dtype in dtypes().into_iter().filter(|dtype| dtype.is_quantized()) {
        for (n, k) in [(2, 256), (576, 768), (2048, 2048), (2050, 1536), (9728, 8192), (151_936, 14_336)] {
            let weight = WeightLayout::new(dtype, n, k).unwrap();
            let (n, k) = (n as u32, k as u32);
            for most in [32, 64, 100, 128, 256, 768, 1024] {
                let tuning = MatVecTuning::of(n, k, most, &sizes);
                assert!(tuning.workgroup <= most.max(32 * tuning.splits), "{tuning:?} of at most {most}");
                for rows in [1, 2, 4, 5, 16, 19, 64] {
                    let tuning = tuning.for_rows(rows, k, &sizes);
                    assert_eq!(tuning.splits, MatVecTuning::of(n, k, 1024, &sizes).splits, "of {n} × {k}");
                    let call = MatVecCall { tuning, ..MatVecCall::new(weight, rows) };
                    call.launch(Rungs::ALL)
                        .unwrap_or_else(|error| panic!("{dtype}, at most {most}: {error}"));
                }
            }
        }
    }
}

/// Every size that a tuning file can set gives forms that can be launched.
#[test]
fn every_size_of_a_device_gives_valid_forms() {
    let names = [
        "narrow_outputs",
        "medium_outputs",
        "wide_outputs",
        "layer_outputs",
        "workgroup",
        "prologue_workgroup",
        "prologue_workgroups",
        "rows_workgroup",
        "row_tile_outputs",
        "register_blocks",
        "register_words",
        "factors_last_outputs",
        "int8_matrix_workgroups",
        "int8_matrix_from_rows",
    ];
    let values = [1, 2, 7, 16, 64, 100, 256, 1024, 40_000, 65_535, 65_536, u32::MAX];
    let mut valid = 0;
    for name in names {
        let set = |value| -> Option<MatVecSizes> {
            let mut sizes = MatVecSizes::H200;
            sizes.set(name, value).map(|()| sizes)
        };
        assert_eq!(set(0), None, "{name}");
        assert!(values.iter().any(|value| set(*value).is_some_and(|sizes| sizes != MatVecSizes::H200)));
        for sizes in values.into_iter().filter_map(set) {
            valid += 1;
            for (n, k) in [(576, 1024), (2048, 2048), (4096, 14_336), (9728, 4096), (151_936, 2048)] {
                let weight = WeightLayout::new(DType::Q4_0, n, k).unwrap();
                let tuning = MatVecTuning::of(n as u32, k as u32, 1024, &sizes);
                for rows in [1, 9, 16] {
                    let tuning = tuning.for_rows(rows, k as u32, &sizes);
                    let call = MatVecCall { tuning, sizes, ..MatVecCall::new(weight, rows) };
                    call.launch(Rungs::ALL).unwrap_or_else(|error| panic!("{sizes:?}: {error}"));
                    // Other shapes than it takes are refused.
                    let _ = call.launch_int8_matrix(Rungs::ALL, Results::F32);
                }
            }
        }
    }
    assert!(valid > 60, "{valid}");
    assert_eq!(MatVecSizes::H200.clone().set("outputs", 1), None);
}
