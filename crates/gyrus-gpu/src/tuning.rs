//! How mat-vecs divide their work on a device: by a rule, or as `gyrus tune` found to be fastest.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use gyrus_kernels::WeightLayout;
use gyrus_kernels::call::{MatVecSizes, MatVecTuning};
use gyrus_kernels::shader::Rungs;

use crate::cache_file::replace;
use crate::profile::DeviceProfile;

/// The properties of a matrix that the speed of a mat-vec depends on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MatShape {
    dtype: &'static str,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    /// Whether the mat-vec computes a gated activation of its results.
    pub(crate) gated: bool,
}

impl MatShape {
    pub(crate) fn of(layout: WeightLayout, gated: bool) -> MatShape {
        MatShape { dtype: layout.dtype().name(), rows: layout.rows(), cols: layout.cols(), gated }
    }
}

impl fmt::Display for MatShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MatShape { dtype, rows, cols, gated } = self;
        write!(f, "{dtype} {rows} {cols} {}", if *gated { "gated" } else { "plain" })
    }
}

/// The fastest forms of mat-vecs on a device, by the shape of the matrix, and sizes that differ from its profile.
///
/// The forms determine the order of sums, so they must not change while a backend lives.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tuning {
    mat_vecs: BTreeMap<String, MatVecTuning>,
    /// Overrides of the [`DeviceProfile`], by name.
    device: BTreeMap<String, u32>,
}

impl Tuning {
    /// The form of a mat-vec: the fastest if it was tuned, else the rule's for a device of these sizes.
    pub(crate) fn of(&self, shape: MatShape, most_invocations: u32, sizes: &MatVecSizes) -> MatVecTuning {
        let rule = || MatVecTuning::of(shape.rows, shape.cols, most_invocations, sizes);
        self.mat_vecs.get(&shape.to_string()).copied().unwrap_or_else(rule)
    }

    /// The profile of a device with these features, with overrides.
    pub(crate) fn profile(&self, rungs: Rungs) -> DeviceProfile {
        let mut profile = DeviceProfile::of(rungs);
        for (name, value) in &self.device {
            // They were checked when they were read.
            let _ = profile.set(name, *value);
        }
        profile
    }

    pub(crate) fn set(&mut self, shape: &MatShape, tuning: MatVecTuning) {
        self.mat_vecs.insert(shape.to_string(), tuning);
    }

    /// The contents of a file; nothing if there is none or it is invalid.
    pub(crate) fn read(path: &Path) -> Tuning {
        fs::read_to_string(path).ok().and_then(|text| Tuning::parse(&text)).unwrap_or_default()
    }

    /// `None` if the text is not that of a tuning file.
    pub(crate) fn parse(text: &str) -> Option<Tuning> {
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return None;
        }
        let mut tuning = Tuning::default();
        for line in lines {
            let (shape, form) = line.split_once(" = ")?;
            if let Some(name) = shape.strip_prefix("device ") {
                let value = form.parse().ok()?;
                DeviceProfile::of(Rungs::ALL).set(name, value)?;
                tuning.device.insert(name.to_owned(), value);
                continue;
            }
            let numbers: Vec<u32> = form.split(' ').map(|n| n.parse().ok()).collect::<Option<_>>()?;
            let [workgroup, columns, splits, passes] = numbers[..] else { return None };
            let form = MatVecTuning { workgroup, columns, splits, passes };
            // The kernel must have this form.
            form.check().ok()?;
            tuning.mat_vecs.insert(shape.to_owned(), form);
        }
        Some(tuning)
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = format!("{HEADER}\n");
        for (name, value) in &self.device {
            text.push_str(&format!("device {name} = {value}\n"));
        }
        for (shape, MatVecTuning { workgroup, columns, splits, passes }) in &self.mat_vecs {
            text.push_str(&format!("{shape} = {workgroup} {columns} {splits} {passes}\n"));
        }
        replace(path, text.as_bytes())
    }
}

/// The first line of a file.
const HEADER: &str = "gyrus tuning 2";

/// Forms of a mat-vec to try for a matrix, the rule's first.
pub(crate) fn forms(shape: &MatShape, most_invocations: u32, profile: &DeviceProfile) -> Vec<MatVecTuning> {
    let mut forms = vec![MatVecTuning::of(shape.rows, shape.cols, most_invocations, &profile.mat_vec)];
    for splits in [1, 2, 4, 8] {
        for columns in [1, 2, 4, 8] {
            for workgroup in [128, 256, 512, 1024] {
                let blocks = (shape.cols / 32).div_ceil(32 * splits);
                let together = workgroup / 32 / splits * columns;
                // A block for most lanes of a team at least, and not too many loads at once.
                let fits = workgroup <= most_invocations
                    && (splits == 1 || shape.cols / 32 > 16 * splits)
                    && (2..=16).contains(&(blocks * columns))
                    && together >= if shape.gated { 2 } else { 1 };
                for passes in [1, 2, 4] {
                    let form = MatVecTuning { workgroup, columns, splits, passes };
                    let groups = if fits { shape.rows / (together * passes) } else { 0 };
                    let busy = passes == 1 || groups * workgroup >= profile.busy_invocations;
                    if fits && busy && form.check().is_ok() && !forms.contains(&form) {
                        forms.push(form);
                    }
                }
            }
        }
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuning_files_round_trip_and_invalid_ones_are_ignored() {
        let mut tuning = Tuning::default();
        let shape = MatShape { dtype: "Q4_0", rows: 3072, cols: 2048, gated: false };
        let form = MatVecTuning { workgroup: 128, columns: 4, splits: 2, passes: 4 };
        tuning.set(&shape, form);
        let path = std::env::temp_dir().join(format!("gyrus-tuning-{}.txt", std::process::id()));
        tuning.write(&path).unwrap();
        assert_eq!(Tuning::read(&path), tuning);
        assert_eq!(Tuning::read(&path).of(shape.clone(), 1024, &MatVecSizes::H200), form);
        // Sizes of the device can be overridden, and are kept when the file is written again.
        let lines = "device gathered_workgroups = 32\ndevice matvec_int8_matrix_workgroups = 80\n";
        fs::write(&path, format!("gyrus tuning 2\n{lines}")).unwrap();
        let sized = Tuning::read(&path);
        let default = DeviceProfile::of(Rungs::NONE);
        let mat_vec = MatVecSizes { int8_matrix_workgroups: 80, ..default.mat_vec };
        assert_eq!(sized.profile(Rungs::NONE), DeviceProfile { gathered_workgroups: 32, mat_vec, ..default });
        sized.write(&path).unwrap();
        assert_eq!(Tuning::read(&path), sized);
        for text in [
            "",
            "gyrus tuning 1\n",
            "gyrus tuning 2\nQ4_0 1 1 plain = 7 1 1 1\n",
            "gyrus tuning 2\nx\n",
            "gyrus tuning 2\ndevice multiprocessors = 132\n",
            "gyrus tuning 2\ndevice gathered_tiles = 3\n",
            "gyrus tuning 2\ndevice tile_workgroups = 0\n",
            "gyrus tuning 2\ndevice matvec_workgroup = 96\n",
            "gyrus tuning 2\ndevice matvec_prologue_workgroups = 0\n",
            "gyrus tuning 2\ndevice matvec_int8_matrix_workgroups = 4294967295\n",
            "gyrus tuning 2\ndevice workgroup = 512\n",
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(Tuning::read(&path), Tuning::default(), "{text}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(Tuning::read(&path), Tuning::default());
    }

    #[test]
    fn every_form_can_be_launched() {
        use gyrus_kernels::WeightLayout;
        use gyrus_kernels::call::MatVecCall;
        for (rows, cols, gated) in
            [(2048, 2048, false), (16384, 2048, true), (2048, 8192, false), (576, 576, false)]
        {
            let layout = WeightLayout::new(gyrus_tensor::DType::Q4_0, rows, cols).unwrap();
            let forms = forms(&MatShape::of(layout, gated), 1024, &DeviceProfile::of(Rungs::ALL));
            assert!(forms.len() > 4, "{} forms", forms.len());
            for tuning in forms {
                let gate = gated.then_some(gyrus_kernels::Activation::Silu);
                let call = MatVecCall { tuning, gate, ..MatVecCall::new(layout, 1) };
                call.launch(Rungs::ALL).unwrap();
            }
        }
    }
}
