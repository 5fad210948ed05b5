//! `godel health`: what a service says of itself on `/healthz`.
//!
//! The port of metrics speaks plain text or TLS, as its service does; who asks need not know. Whoever answers is believed, in plain text as over TLS: nothing
//! is sent but the question, and a check of a container knows no roots.

use std::{io, time::Duration};

use godel_client::{
    exit::{Code, Failure},
    output::{self, shown},
};
use godel_kit::{
    client::open,
    config::ClientConfig,
    security::{ClientSecurity, ExpectedServer, Role},
    tls::HttpVersion,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::args::Health;

/// Time for the whole answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of an answer that are read; it is a line or two.
const ANSWER_BYTES_MAX: u64 = 4096;

pub(super) async fn run(wanted: &Health) -> Result<(), Failure> {
    let address = wanted.metrics.trim_end_matches('/');
    let at = shown(address.trim_start_matches("http://")).into_owned();
    let answer = match tokio::time::timeout(TIMEOUT, ask(address)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            let said = format!("nothing answers /healthz at {at}: {error}");
            return Err(Failure::new(Code::Unreachable, said)
                .hint("name the address of its metrics (`metrics_listen`)"));
        }
        Err(_elapsed) => return Err(Failure::new(Code::Timeout, format!("{at} does not answer /healthz"))),
    };
    match judge(&answer) {
        Some((200, said)) => output::print(&format!("{}\n", shown(&said))),
        Some((503, said)) => {
            Err(Failure::new(Code::Unreachable, format!("{at} is not healthy: {}", shown(&said))))
        }
        Some((code, _)) => Err(Failure::failed(format!("{at} answers /healthz with HTTP status {code}"))),
        None => Err(Failure::failed(format!("{at} does not speak HTTP"))),
    }
}

/// Asks as the address says. Without a scheme plain text is tried first: a port that speaks TLS refuses the request as bad.
async fn ask(address: &str) -> io::Result<String> {
    match address.split_once("://") {
        Some(("https", place)) => ask_over_tls(place).await,
        Some((_, place)) => get(TcpStream::connect(place).await?, place).await,
        None => {
            let answer = get(TcpStream::connect(address).await?, address).await?;
            match judge(&answer) {
                Some((400, _)) => ask_over_tls(address).await,
                _ => Ok(answer),
            }
        }
    }
}

async fn ask_over_tls(place: &str) -> io::Result<String> {
    let config = ClientConfig { security: ClientSecurity::unverified(), ..ClientConfig::default() };
    let whoever = ExpectedServer::any_of(Role::State);
    get(open(&format!("https://{place}"), &whoever, &config, HttpVersion::One).await?, place).await
}

async fn get(mut stream: impl AsyncRead + AsyncWrite + Unpin, place: &str) -> io::Result<String> {
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Status and body of an answer.
fn judge(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut words = head.lines().next()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    Some((words.next()?.parse().ok()?, body.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_status_and_words() {
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
        assert_eq!(judge(ok), Some((200, "ok".to_owned())));
        let not = "HTTP/1.1 503 Service Unavailable\r\n\r\nstate has not answered for 7s\n";
        assert_eq!(judge(not), Some((503, "state has not answered for 7s".to_owned())));
        for bad in ["", "hello", "HTTP/2 200\r\n\r\n", "HTTP/1.1 many\r\n\r\n", "HTTP/1.1 200 OK\r\n"] {
            assert_eq!(judge(bad), None, "{bad:?}");
        }
    }
}
