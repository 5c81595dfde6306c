//! Failures of a device are errors, after which the process can go on.

mod common;

use std::fs;
use std::path::Path;

use common::device;
use gyrus_gpu::{Gpu, GpuError, Options, adapters};
use gyrus_kernels::call::{copy, read_sums};
use gyrus_kernels::grid::Noise;
use gyrus_kernels::scalar;
use gyrus_kernels::shader::Rungs;
use gyrus_testkit::tempfile;

/// The adapter that tests run on, by its name.
fn name() -> Option<String> {
    Some(device(Rungs::ALL)?.gpu().adapter().name.clone())
}

/// Copies data to the device and back.
fn works(gpu: &Gpu) -> Result<(), GpuError> {
    let words: Vec<u8> = (0..64).collect();
    let (source, target) = (gpu.upload(&words)?, gpu.buffer(64)?);
    let dispatch = gpu.bind(&copy(gpu.rungs(), 64)?, &[&source, &target])?;
    gpu.run(&[&dispatch])?;
    assert_eq!(gpu.read(&target)?, words);
    Ok(())
}

#[test]
fn a_lost_device_stays_lost_and_another_can_be_opened() {
    let Some(adapter) = name() else { return };
    let open = || Gpu::open(&Options { adapter: Some(adapter.clone()), ..Options::default() }).unwrap();
    let gpu = open();
    works(&gpu).unwrap();
    let (source, target) = (gpu.upload(&[7; 64]).unwrap(), gpu.buffer(64).unwrap());
    let dispatch = gpu.bind(&copy(gpu.rungs(), 64).unwrap(), &[&source, &target]).unwrap();
    gpu.close();
    let lost = |result: Result<(), GpuError>| {
        let error = result.unwrap_err();
        assert!(matches!(error, GpuError::Lost { .. }), "{error:?}");
        assert_eq!(error.to_string(), "the GPU was lost: it was closed");
    };
    // Every later call fails, too.
    for _ in 0..2 {
        lost(gpu.run(&[&dispatch]));
        lost(gpu.write(&source, &[1; 64]));
        lost(gpu.read(&target).map(drop));
        lost(gpu.buffer(1024).map(drop));
        lost(gpu.wait());
        lost(works(&gpu));
    }
    works(&open()).unwrap();
    drop(gpu);
    works(&open()).unwrap();
}

#[test]
fn an_unknown_adapter_is_reported_with_the_known_ones() {
    let open =
        |adapter: &str| Gpu::open(&Options { adapter: Some(adapter.to_owned()), ..Options::default() });
    let error = open("Voodoo 2").unwrap_err();
    let GpuError::UnknownAdapter { there, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*there, adapters().into_iter().map(|adapter| adapter.name).collect::<Vec<_>>());
}

#[test]
fn too_large_a_buffer_is_an_error() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let gpu = runner.gpu();
    let error = gpu.buffer(u64::MAX / 2).unwrap_err();
    assert!(matches!(error, GpuError::Limit { .. }), "{error:?}");
    works(gpu).unwrap();
}

#[test]
fn memory_is_reported() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let gpu = runner.gpu();
    // wgpu uses Vulkan here, where every device has a device-local heap.
    if gpu.adapter().api() == "Vulkan" {
        let memory = gpu.memory().unwrap();
        assert!(memory.free <= memory.total && memory.total > 64 << 20, "{memory:?}");
    }
    let adapter = Some(gpu.adapter().name.clone());
    let capped = Gpu::open(&Options { adapter, memory: Some(1 << 20), ..Options::default() }).unwrap();
    assert_eq!(capped.memory().unwrap().free, 1 << 20);
    works(&capped).unwrap();
}

/// Files in a folder, and their contents.
fn files(folder: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder).map(|entries| entries.map(|e| e.unwrap().path()).collect());
    let paths: Vec<std::path::PathBuf> = entries.unwrap_or_default();
    paths.into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

#[test]
fn pipelines_are_stored_and_invalid_files_ignored() {
    let Some(adapter) = name() else { return };
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("pipelines");
    let open = || {
        let pipelines = Some(kept.clone());
        Gpu::open(&Options { adapter: Some(adapter.clone()), pipelines, ..Options::default() }).unwrap()
    };
    let gpu = open();
    if !gpu.adapter().pipeline_cache {
        return gyrus_testkit::skip(gyrus_testkit::Need::Extra, &format!("{adapter} has no pipeline cache"));
    }
    gpu.compile(&[copy(gpu.rungs(), 64).unwrap()]).unwrap();
    // Written after compilation, not only when the device is dropped.
    let first = files(&kept);
    assert_eq!(first.len(), 1);
    works(&gpu).unwrap();
    drop(gpu);
    let (path, good) = &first[0];
    let cut = good[..good.len() - 1].to_vec();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let headless = good[16..].to_vec();
    for bytes in [good.clone(), b"garbage".to_vec(), Vec::new(), vec![0xa5; 4096], cut, flipped, headless] {
        fs::write(path, &bytes).unwrap();
        let gpu = open();
        works(&gpu).unwrap();
        drop(gpu);
        let now = files(&kept);
        assert_eq!(now.len(), 1, "{now:?}");
        assert_eq!(now[0].1[..8], *b"gyruspc1", "the invalid file was replaced");
    }
    // A folder that cannot be created is ignored.
    let pipelines = Some(path.join("below"));
    let gpu = Gpu::open(&Options { adapter: Some(adapter), pipelines, ..Options::default() }).unwrap();
    works(&gpu).unwrap();
}

/// The kernel that measures how fast memory is read reads all of it.
#[test]
fn sums_of_what_is_read_are_those_of_the_twin() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let noise = &mut Noise::new(61);
    for bytes in [16, 4096, 32 << 10, (32 << 10) + 16, 5 << 20] {
        let x = noise.words(bytes / 4);
        let expected = scalar::read_sums(&x);
        let launch = read_sums(runner.gpu().rungs(), bytes as u64).unwrap();
        let mut buffers = [x, vec![7; expected.len() + 2]];
        runner.run_launch(&launch, &mut buffers).unwrap();
        assert!(buffers[1][..expected.len()] == expected, "{bytes} bytes");
        assert_eq!(buffers[1][expected.len()..], [7, 7], "{bytes} bytes");
    }
    assert!(read_sums(Rungs::ALL, 1 << 36).is_err());
}
