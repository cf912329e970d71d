//! A client asks and a server replies, both in one process. `README.md` quotes it.
//!
//! ```text
//! $ cargo run --example hello
//! client: hello, world
//! client: closed on this side; connect again if it is still needed
//! server: closed by the peer: the peer's program closed the endpoint; connect again if it is still needed
//! ```
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::time::Duration;

use adverb::{Config, Context, Listener};

const GREET: u16 = 1;
const LONG: Duration = Duration::from_secs(10);

fn server(listener: &Listener) -> anyhow::Result<()> {
    // A handler runs on whichever thread drives the worker. It may send, but not wait.
    listener.worker().on_request(GREET, |_, request| {
        let greeting = format!("hello, {}", String::from_utf8_lossy(request.payload()));
        if let Err(unsent) = request.reply(b"a header", greeting.as_bytes()) {
            eprintln!("server: {unsent}");
        }
    });
    // Waiting drives the worker; so does a `worker.progress_thread()`, or `worker.drive()` in tokio.
    let endpoint = listener.accept(LONG)?;
    println!("server: {}", endpoint.closed().wait(Duration::MAX)?.kind);
    Ok(())
}

fn client(address: SocketAddr) -> anyhow::Result<()> {
    let worker = Context::open()?.worker(Config::new())?;
    let endpoint = worker.connect(address)?;
    let reply = endpoint.request(GREET, b"a header", b"world").wait(LONG)?; // or `.await`
    println!("client: {}", String::from_utf8_lossy(reply.payload()));
    println!("client: {}", endpoint.close().wait(LONG)?.kind);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let listener = Context::open()?.worker(Config::new())?.listen("127.0.0.1:0")?;
    let address = listener.local_addr();
    let serving = std::thread::spawn(move || server(&listener));
    client(address)?;
    serving
        .join()
        .map_err(|_| anyhow::anyhow!("the server panicked"))?
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_client_gets_its_answer() {
        super::main().unwrap();
    }

    #[test]
    fn the_readme_quotes_this_file() {
        let readme = include_str!("../README.md");
        let (_, use_it) = readme.split_once("## Use it").unwrap();
        let (_, quote) = use_it.split_once("```rust\n").unwrap();
        let (quote, _) = quote.split_once("```").unwrap();
        assert!(
            include_str!("hello.rs").contains(&format!("\n\n{quote}\n")),
            "{quote}"
        );
    }
}
