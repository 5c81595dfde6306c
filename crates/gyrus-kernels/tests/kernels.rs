//! Every file under `wgsl/` belongs to a kernel that is tested, and every kernel names its scalar twin.

mod launches;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gyrus_kernels::{Rope, Sampler, abi, scalar};
use launches::{ALL_RUNGS, launches};

/// The WGSL files by their path under `wgsl/`.
fn files() -> BTreeMap<String, String> {
    fn collect(root: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(root, &path, files);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
                files.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("wgsl");
    let mut files = BTreeMap::new();
    collect(&root, &root, &mut files);
    files
}

/// The kernels: files that no other file includes.
fn kernels(files: &BTreeMap<String, String>) -> BTreeSet<&str> {
    let included: BTreeSet<&str> = files
        .values()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.strip_prefix("#include \"")?.split('"').next())
        .collect();
    files.keys().map(String::as_str).filter(|file| !included.contains(file)).collect()
}

/// A new kernel without a launch in `tests/launches`, and a file that nothing includes, fail here.
#[test]
fn every_kernel_is_launched() {
    let files = files();
    let launched: BTreeSet<&str> =
        ALL_RUNGS.iter().flat_map(|rungs| launches(*rungs)).map(|launch| launch.variant().file).collect();
    assert_eq!(kernels(&files), launched);
}

/// Twins by the names that head comments use. The paths are checked by the compiler.
fn twins() -> Vec<&'static str> {
    macro_rules! functions {
        ($($path:path),* $(,)?) => { [$({ let _ = $path; stringify!($path) },)*] };
    }
    macro_rules! types {
        ($($path:path),* $(,)?) => { [$({ let _ = size_of::<$path>(); stringify!($path) },)*] };
    }
    let functions = functions![
        Rope::apply,
        Sampler::draw,
        abi::scalar::rope,
        scalar::attend,
        scalar::attention,
        scalar::conv1d,
        scalar::f16_rows,
        scalar::gate,
        scalar::kv_copy,
        scalar::kv_shift,
        scalar::matmul,
        scalar::norm,
        scalar::quantize_rows,
        scalar::read_sums,
        scalar::rms_norm,
    ];
    functions.into_iter().chain(types![scalar::Reference, scalar::SelectState]).collect()
}

/// The head comment as one line.
fn head(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//"));
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_kernel_names_its_twin() {
    let files = files();
    let twins = twins();
    for kernel in kernels(&files) {
        let head = head(&files[kernel]);
        let (_, named) = head
            .split_once("Twin: ")
            .or_else(|| head.split_once("Twins: "))
            .unwrap_or_else(|| panic!("{kernel} names no twin"));
        let sentence = named.split(". ").next().unwrap_or(named);
        let words = sentence.split(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c)));
        let paths: Vec<&str> = words.filter(|word| word.contains("::")).collect();
        assert!(!paths.is_empty(), "{kernel} names no twin: {sentence}");
        for path in paths {
            assert!(twins.contains(&path), "{kernel} names {path}, which is not in the list of twins");
        }
    }
}
