//! The floor of what a transport over UDP can do: two threads that pass one datagram over loopback to and fro, both spinning on their sockets.
//!
//! `udp_pingpong BYTES ITERATIONS` prints the median of the one-way time, half of the round trip, in µs.

use std::io;
use std::net::UdpSocket;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let bytes: usize = arguments.next().ok_or("how many bytes?")?.parse()?;
    let iterations: usize = arguments.next().ok_or("how many iterations?")?.parse()?;
    let (ping, pong) = (socket()?, socket()?);
    let (to_ping, to_pong) = (ping.local_addr()?, pong.local_addr()?);
    let warmup = iterations / 10;
    let answering = std::thread::spawn(move || -> io::Result<()> {
        let mut buffer = vec![0; bytes];
        for _ in 0..warmup + iterations {
            receive(&pong, &mut buffer)?;
            pong.send_to(&buffer, to_ping)?;
        }
        Ok(())
    });
    let mut buffer = vec![0; bytes];
    let mut times = Vec::with_capacity(iterations);
    for i in 0..warmup + iterations {
        let start = Instant::now();
        ping.send_to(&buffer, to_pong)?;
        receive(&ping, &mut buffer)?;
        if i >= warmup {
            times.push(start.elapsed());
        }
    }
    answering.join().map_err(|_| "the answering thread panicked")??;
    times.sort();
    let median = times.get(times.len() / 2).ok_or("no iterations")?;
    println!("{:.3}", median.as_secs_f64() * 1e6 / 2.0);
    Ok(())
}

fn socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<()> {
    loop {
        match socket.recv_from(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            other => return other.map(drop),
        }
    }
}
