//! Generations that own their sessions: awaited, dropped, many on one thread.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use gyrus::{Answer, Error, Event, Model, Options, Request, Sampler, StopReason};

fn tales() -> Option<Model> {
    let path = gyrus_testkit::data("tales/tales-7m-q8_0.gguf")?;
    let options = Options { sessions: 8, context: Some(512), threads: Some(2), ..Options::default() };
    Some(Model::open(&path, &options).unwrap())
}

fn request(seed: u64) -> Request {
    let sampler = Sampler { temperature: 0.8, seed, ..Sampler::default() };
    Request::text("Once upon a time").max_tokens(40).sampler(sampler).choices(1 + seed as usize % 2)
}

/// The texts of both choices, and whether a stop came for each.
#[derive(Debug, Default, PartialEq, Clone)]
struct Seen {
    texts: [String; 2],
    stops: usize,
}

impl Seen {
    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Text { choice, text } => self.texts[choice].push_str(text),
            Event::Stop { .. } => self.stops += 1,
            _ => {}
        }
    }
}

/// Wakes by sending the number of a task.
struct Numbered(usize, Sender<usize>);

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        let _ = self.1.send(self.0);
    }
}

#[test]
fn many_answers_are_awaited_on_one_thread() {
    let Some(model) = tales() else { return };
    let expected: Vec<Seen> = (0..12)
        .map(|seed| {
            let mut session = model.session();
            let mut generation = session.generate(request(seed)).unwrap();
            let mut seen = Seen::default();
            while let Some(event) = generation.next().unwrap() {
                seen.add(event);
            }
            seen
        })
        .collect();
    let _driver = model.drive().unwrap();
    let (send, woken) = mpsc::channel();
    let mut tasks: Vec<(Answer, Waker, Seen, bool)> = (0..12)
        .map(|seed| {
            let waker = Waker::from(Arc::new(Numbered(seed as usize, send.clone())));
            (model.answer(request(seed)).unwrap(), waker, Seen::default(), false)
        })
        .collect();
    (0..12).for_each(|task| send.send(task).unwrap());
    while tasks.iter().any(|(_, _, _, done)| !done) {
        // A task that is not woken would wait for ever.
        let number = woken.recv_timeout(Duration::from_secs(60)).expect("a task is woken");
        let (answer, waker, seen, done) = &mut tasks[number];
        let context = Context::from_waker(waker);
        while !*done {
            match answer.poll_next(&context) {
                Poll::Pending => break,
                Poll::Ready(event) => match event.unwrap() {
                    Some(event) => seen.add(event),
                    None => *done = true,
                },
            }
        }
    }
    for (seed, (_, _, seen, _)) in tasks.iter().enumerate() {
        assert_eq!(seen, &expected[seed], "seed {seed}");
    }
}

#[test]
fn dropped_answers_free_what_they_used() {
    let Some(model) = tales() else { return };
    let _driver = model.drive().unwrap();
    // Some run, some wait.
    let endless = || Request::text("Once upon a time").ignore_end(true);
    let answers: Vec<Answer> = (0..24).map(|_| model.answer(endless()).unwrap()).collect();
    let wait_for = |is_so: &dyn Fn(&gyrus::Statistics) -> bool| {
        let start = Instant::now();
        while !is_so(&model.statistics()) {
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", model.statistics());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for(&|now| now.running > 0 && now.generated_tokens > 0);
    drop(answers);
    wait_for(&|now| now.running == 0 && now.waiting == 0 && now.used_blocks == 0);
    // The model still answers.
    let mut answer = model.answer(request(0)).unwrap();
    let mut stop = None;
    while let Some(event) = answer.next().unwrap() {
        if let Event::Stop { reason, .. } = event {
            stop = Some(reason);
        }
    }
    assert!(matches!(stop, Some(StopReason::MaxTokens | StopReason::EndToken(_))), "{stop:?}");
    assert!(answer.tokens().len() > 4);
}

#[test]
fn a_request_that_cannot_run_is_refused_at_once() {
    let Some(model) = tales() else { return };
    let long = Request::ids(vec![1; 600]);
    assert!(matches!(model.answer(long).err(), Some(Error::PromptTooLong { tokens: 600, context: 512 })));
}
