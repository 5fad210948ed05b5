//! Answers to clients that speak plain text to a port with TLS, or TLS to one without.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
};
use tonic::body::Body;

use crate::status;

/// Time to send a request and read the answer.
const REFUSAL_TIME: Duration = Duration::from_secs(2);
/// Time for the other side to read the last bytes and close, and what it may send meanwhile.
const LINGER_TIME: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: u64 = 64 * 1024;
/// Streams that are answered at once.
const N_STREAMS_MAX: u32 = 8;

/// What a client reads that speaks plain text to a port with TLS.
pub(crate) fn plain_text_words(stream: &TcpStream) -> String {
    let local = stream.local_addr().map_or_else(|_| "HOST:PORT".to_owned(), |local| local.to_string());
    format!(
        "this port speaks TLS and the call came in plain text: use https://{local} with the roots of the cluster (grpcurl and curl: \
         -cacert and --cacert instead of -plaintext and http://), or the unix socket of state on its own machine"
    )
}

/// What a client reads that speaks TLS to a port without, if it looks at all: it knows by the first byte that this is no TLS.
const TLS_WORDS: &str = "this port speaks plain text: use http://, or start the server with TLS";

/// Answers a client in plain text that it has to speak TLS: with a status to a gRPC client, and a line of text to others.
pub(crate) async fn refuse_plain_text(stream: TcpStream) {
    let words = plain_text_words(&stream);
    let answered = Notify::new();
    let service = service_fn(|request: Request<Incoming>| {
        answered.notify_one();
        std::future::ready(Ok::<_, Infallible>(refusal(&request, &words)))
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().keep_alive(false);
    builder.http2().max_concurrent_streams(N_STREAMS_MAX);
    let mut http = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let _late = tokio::time::timeout(REFUSAL_TIME, async {
        tokio::select! {
            _ended = http.as_mut() => return,
            () = answered.notified() => {}
        }
        http.as_mut().graceful_shutdown();
        let _ended = http.await;
    })
    .await;
}

fn refusal(request: &Request<Incoming>, words: &str) -> Response<Body> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with("application/grpc")) {
        return status::tls_required(words).into_http();
    }
    let mut answer = Response::new(Body::new(axum::body::Body::from(format!("{words}\n"))));
    *answer.status_mut() = StatusCode::BAD_REQUEST;
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// Ends a connection that began with TLS at a port without: at once, and by bytes that no TLS client takes for TLS, so that it says so.
pub(crate) async fn refuse_tls(stream: TcpStream) {
    answer_and_close(stream, TLS_WORDS).await;
}

/// Answers with a line of HTTP/1 that the request was bad.
pub(crate) async fn answer_and_close(mut stream: TcpStream, words: &str) {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{words}\n",
        words.len() + 1
    );
    let written = tokio::time::timeout(LINGER_TIME, stream.write_all(answer.as_bytes())).await;
    if matches!(written, Ok(Ok(()))) {
        linger(stream).await;
    }
}

/// Closes a connection such that the other side can read what was sent last: bytes that nobody has read would have the kernel discard that.
pub(crate) async fn linger(mut stream: TcpStream) {
    let _late = tokio::time::timeout(LINGER_TIME, async {
        let _closed = stream.shutdown().await;
        let mut rest = stream.take(LINGER_BYTES_MAX);
        let _read = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
    })
    .await;
}
