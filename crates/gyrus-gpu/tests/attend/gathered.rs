//! Gathered attention, where one workgroup merges all splits of a row and quantises the result to int8. It has the bits of
//! separate splits that are merged and quantised by another kernel.

use gyrus_testkit::cases;

use super::*;

/// Positions of sixteen rows: from one split to 24, of one, two and four tiles.
const ROWS: [u32; 16] = [700, 0, 1, 63, 64, 5000, 127, 128, 320, 639, 31, 32, 1300, 1535, 1540, 2];

/// How many tiles at once, and whether sums are in workgroup memory.
const WAYS: [[SplitMode; 2]; 3] = [
    [SplitMode::Gathered { tiles: 1, kept: false }, SplitMode::Gathered { tiles: 1, kept: true }],
    [SplitMode::Gathered { tiles: 2, kept: true }, SplitMode::Gathered { tiles: 2, kept: false }],
    [SplitMode::Gathered { tiles: 4, kept: true }, SplitMode::Gathered { tiles: 4, kept: false }],
];

/// The outputs of a launch.
fn outputs(buffers: &mut Buffers, rows: usize, form: Form) -> [Vec<u32>; 4] {
    let width = form.heads * form.head_dim;
    // One word more, which must not be written.
    for (name, words) in [("q", rows * width / 4), ("q_scales", rows * width / 16)] {
        assert_eq!(buffers[name].len(), words + 1, "{name}");
        assert_eq!(buffers[name][words], UNTOUCHED, "{name}");
    }
    ["q", "q_scales", "k_cache", "v_cache"].map(|name| buffers.remove(name).unwrap())
}

fn allocate_outputs(buffers: &mut Buffers, rows: usize, form: Form) {
    let width = form.heads * form.head_dim;
    buffers.insert("q", vec![UNTOUCHED; rows * width / 4 + 1]);
    buffers.insert("q_scales", vec![UNTOUCHED; rows * width / 16 + 1]);
}

impl Scene {
    /// The buffers before attention: rotated and written, unless attention does that.
    fn ready(&self, runner: &GpuRunner, rows: &[usize], rotate: bool) -> Buffers {
        let mut buffers = self.buffers(rows);
        allocate_outputs(&mut buffers, rows.len(), self.form);
        if !rotate {
            self.rope_write(runner, rows, &mut buffers);
        }
        buffers
    }

    /// Int8 rows and caches by separate splits.
    fn separate(&self, runner: &GpuRunner, rows: &[usize], how: (u32, f32), rotate: bool) -> [Vec<u32>; 4] {
        let mut buffers = self.ready(runner, rows, rotate);
        self.attend(runner, rows, how, rotate, &mut buffers);
        let merge = self.merge(rows, how.0, Target::Int8);
        run(runner, &merge.launch(runner.gpu().rungs()).unwrap(), &mut buffers);
        outputs(&mut buffers, rows.len(), self.form)
    }

    /// The same by one workgroup a row, if the device can.
    fn gathered(
        &self,
        runner: &GpuRunner,
        rows: &[usize],
        how: (u32, f32),
        rotate: bool,
        mode: SplitMode,
    ) -> Option<[Vec<u32>; 4]> {
        let call = AttendCall { mode, ..self.call(rows, how, rotate) };
        let gpu = runner.gpu();
        let launch = match call.launch(gpu.rungs()) {
            Ok(launch) => launch,
            Err(error) => {
                assert!(error.to_string().contains("small heads"), "{error}");
                return None;
            }
        };
        if !gpu.capabilities().can_attend_split(&call) {
            return None;
        }
        let mut buffers = self.ready(runner, rows, rotate);
        run(runner, &launch, &mut buffers);
        Some(outputs(&mut buffers, rows.len(), self.form))
    }

    /// Checks all rows in every mode, or in the short run in some, and returns the outputs.
    fn check_gathered(&self, runner: &GpuRunner, how: (u32, f32), rotate: bool) -> [Vec<u32>; 4] {
        let all: Vec<usize> = (0..self.positions.len()).collect();
        let expected = self.separate(runner, &all, how, rotate);
        let what = format!("{}: window and cap {how:?}, rotating {rotate}", self.name(runner));
        let short = cases(1) == 1;
        let mut ways: Vec<SplitMode> = Vec::new();
        for of_number in WAYS {
            // Sums are in workgroup memory where a device has enough.
            for mode in of_number {
                let Some(found) = self.gathered(runner, &all, how, rotate, mode) else { continue };
                assert!(found == expected, "{what}, {mode:?}");
                ways.push(mode);
                if short {
                    break;
                }
            }
            if short && !rotate {
                break;
            }
        }
        // One row alone, and two in another order.
        let (words, scales) =
            (self.form.heads * self.form.head_dim / 4, self.form.heads * self.form.head_dim / 16);
        for rows in [&all[..1], &[all[all.len() - 1], all[0]]] {
            let [q, q_scales, ..] = self.gathered(runner, rows, how, rotate, ways[0]).unwrap();
            for (i, row) in rows.iter().enumerate() {
                assert!(q[i * words..][..words] == expected[0][row * words..][..words], "{what}: row {row}");
                let (found, expected) = (&q_scales[i * scales..], &expected[1][row * scales..]);
                assert!(found[..scales] == expected[..scales], "{what}: scales of row {row}");
            }
        }
        expected
    }
}

/// Alternately with and without norms; in the long run both.
#[test]
fn every_form_gathered() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let mut seed = 100;
    for head_dim in [32, 64, 128] {
        // Five and twelve: groups that are not full, and several groups.
        for heads in [1, 4, 5, 12] {
            seed += 1;
            for (norm, pairing) in [(false, Pairing::Adjacent), (true, Pairing::Split)] {
                // Kernels of larger heads take long to compile.
                let rare = !matches!((head_dim, heads), (32, _) | (64, 4 | 12) | (128, 5));
                if (rare || norm != (seed % 2 == 0)) && cases(1) == 1 {
                    continue;
                }
                let kv_heads = if heads == 12 { 1 } else { 2 };
                let form = form((heads * kv_heads, kv_heads, head_dim), pairing, norm, (head_dim, 0));
                // Fewer rows of larger heads, which take longer.
                let rows = if head_dim == 32 { &ROWS[..] } else { &ROWS[..6] };
                let scene = Scene::new(seed, form, rows);
                for rotate in [false, true] {
                    scene.check_gathered(&runner, (0, 0.0), rotate);
                    scene.check_gathered(&runner, (100, 0.0), rotate);
                }
            }
        }
    }
}

/// Windows of more than a tile a split, caps, elements that are not rotated, large heads, and heads of no power of two.
#[test]
fn rare_forms_gathered() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let rare = [
        form((6, 2, 96), Pairing::Adjacent, false, (32, 16)),
        form((11, 1, 64), Pairing::Split, true, (16, 4)),
        form((4, 2, 192), Pairing::Split, true, (192, 0)),
    ];
    for (seed, form) in (200..).zip(rare) {
        let scene = Scene::new(seed, form, &ROWS[..6]);
        for how in [(1, 0.0), (150, 5.0), (1600, 0.0)] {
            scene.check_gathered(&runner, how, true);
        }
    }
}

/// Every number of rows from one to sixteen.
#[test]
fn any_number_of_rows_gathered() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let small = form((4, 2, 32), Pairing::Split, true, (32, 0));
    for rows in 1..=ROWS.len() {
        Scene::new(300 + rows as u64, small, &ROWS[ROWS.len() - rows..]).check_gathered(
            &runner,
            (0, 0.0),
            true,
        );
    }
}

/// Optional features change no bit.
#[test]
fn gathered_without_any_rung() {
    let rungs = [
        Rungs::ALL,
        Rungs { subgroups: false, ..Rungs::ALL },
        Rungs { immediates: false, ..Rungs::ALL },
        Rungs::NONE,
    ];
    let Some(runners) = rungs.map(device).into_iter().collect::<Option<Vec<_>>>() else { return };
    for (seed, form) in [(410, FORMS[0]), (412, FORMS[2]), (414, FORMS[4])] {
        let scene = Scene::new(seed, form, &ROWS[..5]);
        for rotate in [false, true] {
            let bits: Vec<_> =
                runners.iter().map(|runner| scene.check_gathered(runner, (100, 0.0), rotate)).collect();
            assert!(bits.iter().all(|of| *of == bits[0]), "{form:?}");
        }
    }
}
