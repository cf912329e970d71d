//! Plays ping-pong for a profiler that counts: `ping_pong message|request BYTES ROUNDS`.

use adverb_benches::PingPong;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().ok_or("message or request?")?;
    let payload = vec![7; arguments.next().ok_or("how many bytes?")?.parse()?];
    let rounds: u64 = arguments.next().ok_or("how many rounds?")?.parse()?;
    let ping_pong = PingPong::new()?;
    for _ in 0..rounds {
        match what.as_str() {
            "message" => ping_pong.message(&payload)?,
            "request" => ping_pong.request(&payload)?,
            other => return Err(format!("{other} is neither message nor request").into()),
        }
    }
    Ok(())
}
