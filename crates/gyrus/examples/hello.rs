//! Generates a completion: `cargo run --release -p gyrus --example hello -- MODEL.gguf "Once upon a time"`.

use std::io::Write;

use gyrus::{Event, Model, Options, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: hello MODEL [PROMPT]")?;
    let prompt = arguments.next().unwrap_or_else(|| "Once upon a time".to_owned());

    let model = Model::open(path.as_ref(), &Options::default())?;
    let mut session = model.session();
    let mut generation = session.generate(Request::text(prompt).max_tokens(100))?;
    while let Some(event) = generation.next()? {
        if let Event::Text { text, .. } = event {
            print!("{text}");
            std::io::stdout().flush()?;
        }
    }
    println!();
    Ok(())
}
