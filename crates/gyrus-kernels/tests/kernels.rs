//! Every file under `wgsl/` belongs to a kernel that has a row in the op-test grid, and every kernel names its scalar
//! twin.

mod launches;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use launches::{ALL_RUNGS, launches};

/// The files under a folder of the crate, by their path.
fn files(folder: &str) -> BTreeMap<String, String> {
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
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

/// A new kernel without a row in the grid, and a file that nothing includes, fail here.
#[test]
fn every_kernel_has_a_row_in_the_grid() {
    let files = files("wgsl");
    let launched: BTreeSet<&str> = ALL_RUNGS
        .iter()
        .flat_map(|rungs| launches(*rungs, 100))
        .map(|launch| launch.variant().file)
        .collect();
    assert_eq!(kernels(&files), launched);
}

/// The head comment as one line.
fn head(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//"));
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_kernel_names_its_twin() {
    let (files, sources) = (files("wgsl"), files("src"));
    // `scalar::norm` is a function of a file under `src/`, `scalar::Reference` a type.
    let exists = |path: &str| {
        let name = path.rsplit("::").next().unwrap();
        let items = [format!("pub fn {name}("), format!("pub struct {name} ")];
        sources.values().any(|text| items.iter().any(|item| text.contains(item)))
    };
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
            assert!(exists(path), "{kernel} names {path}, which does not exist");
        }
    }
}
