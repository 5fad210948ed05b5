//! Errors of handshakes: as `rustls` carries them, and in words for people.

use std::{error, io, sync::Arc};

use rustls::{AlertDescription, CertificateError, Error, OtherError, PeerIncompatible};

use super::UnfitServer;
use crate::roots::UnfitLeaf;

/// A refusal as `rustls` carries it: who calls reads it again with [`explain`], and the peer gets an alert.
pub(super) fn handshake_error(why: impl error::Error + Send + Sync + 'static) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))
}

/// Why a handshake failed, in words, and what to do.
pub fn explain(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => {
            let mut words = why.to_string();
            let mut source = why.source();
            while let Some(cause) = source {
                words += &format!(": {cause}");
                source = cause.source();
            }
            words
        }
        Error::AlertReceived(alert) => explain_alert(*alert),
        Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic)
        | Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled)
        | Error::PeerIncompatible(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig)
        | Error::PeerIncompatible(PeerIncompatible::SupportedVersionsExtensionRequired) => OLD_TLS.to_owned(),
        Error::InvalidMessage(_) => {
            format!(
                "the peer does not speak TLS ({error}); is the port the one of godel's API, and does the peer use plain text?"
            )
        }
        error => error.to_string(),
    }
}

const OLD_TLS: &str = "the peer speaks TLS 1.2 or older; only TLS 1.3 is accepted";

fn explain_alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateUnknown | AlertDescription::UnknownCA | AlertDescription::BadCertificate => {
            "the peer refused our certificate: it belongs to another cluster, or to a root that was dropped; join again with a join token"
                .to_owned()
        }
        AlertDescription::CertificateRequired => {
            "the peer asks for a certificate, and we have none; join with a join token".to_owned()
        }
        AlertDescription::ProtocolVersion => OLD_TLS.to_owned(),
        AlertDescription::NoApplicationProtocol => {
            "the peer does not speak our protocol at that port; is it the one of godel's API?".to_owned()
        }
        alert => format!("the peer ended the handshake: {alert:?}"),
    }
}

/// Why a handshake failed, if that is what an error of a connection is.
pub fn explain_io(error: &io::Error) -> Option<String> {
    error.get_ref()?.downcast_ref::<Error>().map(explain)
}

/// Why a server was refused, if that is why a handshake failed.
pub fn unfit_server(error: &Error) -> Option<&UnfitServer> {
    match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => why.downcast_ref(),
        _ => None,
    }
}

/// Why the certificate of a client was refused, if that is why a handshake failed.
pub fn unfit_client(error: &Error) -> Option<&UnfitLeaf> {
    match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => why.downcast_ref(),
        _ => None,
    }
}
