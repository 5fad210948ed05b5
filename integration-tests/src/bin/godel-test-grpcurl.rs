//! What grpcurl does, as far as documents use it: `-plaintext`, `-unix`, `-cacert FILE`, `-H HEADER`, `-d JSON`, `list`, `describe SYMBOL`, and calls
//! of methods.

use std::{io::Write as _, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result, bail, ensure};
use godel_integration_tests::{
    api::channel,
    reflect::{Header, Protocol, ReflectionClient, to_json},
};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut is_plain, mut is_unix, mut roots, mut headers) = (false, false, None, Vec::new());
    let (mut data, mut words) = ("{}".to_owned(), Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-plaintext" => is_plain = true,
            "-unix" => is_unix = true,
            "-cacert" => roots = Some(PathBuf::from(args.next().context("-cacert needs a file")?)),
            "-H" => headers.push(header(&args.next().context("-H needs a header")?)?),
            "-d" => data = args.next().context("-d needs a message")?,
            flag if flag.starts_with('-') => bail!("{flag} is not known here"),
            _ => words.push(arg),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (address, rest) = words.split_first().context("an address is missing")?;
    let channel = match (is_plain, is_unix, roots) {
        (true, false, None) => channel(address)?,
        (true, true, None) => channel(&format!("unix:{address}"))?,
        (false, false, Some(roots)) => secured_channel(address.parse()?, &roots)?,
        _ => bail!("-plaintext, -plaintext -unix or -cacert says what is spoken"),
    };
    let mut client = ReflectionClient::with_headers(channel, Protocol::V1, headers);
    match rest {
        ["list"] => print(&client.list_services().await?.join("\n")),
        ["describe", symbol] => print(&client.describe(symbol).await?),
        [method] => {
            let (service, method) = method.split_once('/').context("a method is SERVICE/METHOD")?;
            client.load(service).await?;
            if !client.is_streaming(service, method)? {
                return print(&format!("{:#}", client.call(service, method, &data).await?));
            }
            let mut answers = client.stream(service, method, &data).await?;
            while let Some(answer) = answers.message().await? {
                print(&format!("{:#}", to_json(&answer)?))?;
            }
            Ok(())
        }
        _ => bail!("this is no call: {rest:?}"),
    }
}

/// `name: value`.
fn header(text: &str) -> Result<Header> {
    let (name, value) = text.split_once(':').context("a header is NAME: VALUE")?;
    Ok(Header { name: name.trim().to_lowercase().parse()?, value: value.trim().parse()? })
}

/// Over TLS: as usual on the web, the certificate has to be for the address, by one of the roots.
fn secured_channel(address: SocketAddr, file: &PathBuf) -> Result<Channel> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(file)? {
        roots.add(root?)?;
    }
    ensure!(!roots.is_empty(), "{} has no certificate", file.display());
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let open = tower::service_fn(move |_uri| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let stream = connector.connect(ServerName::from(address.ip()), stream).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    // The connector speaks TLS, whatever the scheme says.
    Ok(Endpoint::from_shared(format!("http://{address}"))?.connect_with_connector_lazy(open))
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}
