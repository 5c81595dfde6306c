//! Every variant of every kernel translates to valid SPIR-V, MSL and HLSL with the bindings its launch names. Kernels
//! with int8 cooperative matrices translate to SPIR-V alone.

mod launches;

use gyrus_kernels::Direction;
use gyrus_kernels::call::{Cache, Freqs, RopeCall, RopeKernel, Storage};
use gyrus_kernels::params::{NormEpsParams, RoPEOpParams, RoPEParams, RoPEQKVWriteParams};
use gyrus_kernels::shader::{Rungs, Source};
use gyrus_kernels::{Access, Launch, Pairing};
use launches::{ALL_RUNGS, launches};
use naga::back::{PipelineConstants, hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

struct Compiled {
    /// As parsed: unused bindings are still declared.
    declared: naga::Module,
    module: naga::Module,
    info: ModuleInfo,
}

/// Parses, validates and sets override constants; errors name the file and line.
fn compile(launch: &Launch, source: &Source) -> Compiled {
    let key = launch.variant().key();
    let declared = naga::front::wgsl::parse_str(&source.text).unwrap_or_else(|error| {
        let line = error.location(&source.text).map_or(0, |at| at.line_number);
        panic!("{key}: {:?}: {}", source.origin(line), error.emit_to_string(&source.text));
    });
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator.validate(&declared).unwrap_or_else(|error| {
        panic!("{key}: {}", error.emit_to_string(&source.text));
    });
    let constants: PipelineConstants =
        launch.variant().overrides.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    let entry = Some((naga::ShaderStage::Compute, launch.variant().name.as_str()));
    let (module, info) =
        naga::back::pipeline_constants::process_overrides(&declared, &info, entry, &constants)
            .unwrap_or_else(|error| panic!("{key}: {error}"));
    let (module, info) = (module.into_owned(), info.into_owned());
    Compiled { declared, module, info }
}

fn to_spirv(compiled: &Compiled) -> Vec<u32> {
    let options = spv::Options { lang_version: (1, 3), ..Default::default() };
    spv::write_vec(&compiled.module, &compiled.info, &options, None).unwrap()
}

fn to_msl(compiled: &Compiled) -> String {
    let options = msl::Options { lang_version: (2, 4), fake_missing_bindings: true, ..Default::default() };
    let pipeline = msl::PipelineOptions::default();
    msl::write_string(&compiled.module, &compiled.info, &options, &pipeline).unwrap().0
}

fn to_hlsl(compiled: &Compiled) -> String {
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_2,
        fake_missing_bindings: true,
        immediates_target: Some(hlsl::BindTarget { space: 7, ..Default::default() }),
        special_constants_binding: Some(hlsl::BindTarget { space: 8, ..Default::default() }),
        ..Default::default()
    };
    let pipeline = hlsl::PipelineOptions::default();
    let mut text = String::new();
    hlsl::Writer::new(&mut text, &options, &pipeline).write(&compiled.module, &compiled.info, None).unwrap();
    text
}

#[test]
fn every_variant_translates_to_every_language() {
    let mut seen = std::collections::BTreeSet::new();
    for rungs in ALL_RUNGS {
        for launch in launches(rungs, 60) {
            if !seen.insert(launch.variant().key()) {
                continue;
            }
            let source =
                launch.variant().source().unwrap_or_else(|e| panic!("{}: {e}", launch.variant().key()));
            let compiled = compile(&launch, &source);
            assert!(to_spirv(&compiled).len() > 100);
            // Int8 cooperative matrices exist in SPIR-V alone.
            if !launch.variant().has_int8_matrix() {
                assert!(to_msl(&compiled).contains("kernel void"));
            }
            // No cooperative matrices in HLSL.
            if !source.text.contains("wgpu_cooperative_matrix") {
                assert!(to_hlsl(&compiled).contains("numthreads"));
            }
            check_bindings(&launch, &compiled.declared, rungs);
        }
    }
    assert!(seen.len() > 600, "{} variants", seen.len());
}

/// The shader's resources are those the launch names, each with its access.
fn check_bindings(launch: &Launch, module: &naga::Module, rungs: Rungs) {
    let key = launch.variant().key();
    let mut found = Vec::new();
    for (_, variable) in module.global_variables.iter() {
        let Some(at) = variable.binding else { continue };
        assert_eq!(at.group, 0, "{key}");
        let kind = match variable.space {
            naga::AddressSpace::Storage { access } if access.contains(naga::StorageAccess::STORE) => "write",
            naga::AddressSpace::Storage { .. } => "read",
            naga::AddressSpace::Uniform => "uniform",
            other => panic!("{key}: {other:?}"),
        };
        found.push((at.binding, kind));
    }
    let mut expected: Vec<(u32, &str)> = launch
        .slots()
        .iter()
        .map(|slot| (slot.binding, if slot.access == Access::Read { "read" } else { "write" }))
        .chain(launch.uniforms().iter().map(|(binding, _)| (*binding, "uniform")))
        .collect();
    if let (Some((binding, _)), false) = (launch.params(), rungs.immediates) {
        expected.push((*binding, "uniform"));
    }
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected, "{key}");
    let storage = found.iter().filter(|(_, kind)| *kind != "uniform").count();
    // Gathered attention needs devices that bind ten buffers, int8 cooperative matrices eleven. Sinks are one more: the
    // backend asks how many a device binds before it uses these kernels.
    let sinks = usize::from(launch.slots().iter().any(|slot| slot.name == "sinks"));
    let most = match launch.variant().name.as_str() {
        "attend_gathered" => 10 + sinks,
        "attend" | "flash" => 8 + sinks,
        _ if launch.variant().has_int8_matrix() => 11,
        _ => 8,
    };
    assert!(storage <= most, "{key}: every device binds eight storage buffers, this needs {storage}");
}

/// The shader text of one kernel of each shape. A change here is a change of the code that drivers compile.
#[test]
fn generated_text_is_as_it_was() {
    let head_dim = 64;
    let qkv = RoPEQKVWriteParams {
        n_kv_heads: 2,
        head_dim,
        max_seq_len: 32,
        theta: 1e4,
        n_heads: 4,
        k_elem_offset: 4 * head_dim,
        v_elem_offset: 6 * head_dim,
        freq_scale: 1.0,
        ..Default::default()
    };
    let eps = NormEpsParams { norm_eps: 1e-6, ..Default::default() };
    let x = RoPEParams { seq_len: 3, head_dim, n_heads: 2, theta: 1e4, ..Default::default() };
    let op = RoPEOpParams {
        batch: 1,
        n_heads: 2,
        seq_len: 3,
        head_dim,
        rope_dim: head_dim,
        freqs_dim: head_dim,
        output_scale: 1.0,
        _pad0: 0,
    };
    for kernel in [
        RopeKernel::InPlace { pairing: Pairing::Split, params: x },
        RopeKernel::HeadNorm { params: qkv, eps, plus_one: false, cache: Cache::Contiguous },
        RopeKernel::Op { params: op },
    ] {
        let (storage, direction, freqs) = (Storage::F16, Direction::Forward, Freqs::Turns);
        let call = RopeCall { kernel, storage, direction, freqs, positions: 0 };
        for (name, rungs) in [("all", Rungs::ALL), ("none", Rungs::NONE)] {
            let launch = call.launch(rungs, Default::default()).unwrap();
            let source = launch.variant().source().unwrap();
            let compiled = compile(&launch, &source);
            let kernel = &launch.variant().name;
            insta::assert_snapshot!(format!("{kernel}-{name}.wgsl"), source.text);
            insta::assert_snapshot!(format!("{kernel}-{name}.msl"), to_msl(&compiled));
            insta::assert_snapshot!(format!("{kernel}-{name}.hlsl"), to_hlsl(&compiled));
        }
    }
}
