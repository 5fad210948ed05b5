//! Certificates and keys as text (PEM).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

/// Characters of base64 in a line.
const LINE: usize = 64;

/// Text that holds what is wanted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPem {
    /// No certificate.
    #[error("no certificate between `-----BEGIN CERTIFICATE-----` and `-----END CERTIFICATE-----`")]
    NoCertificate,
    /// Something between the lines is not base64, or a line is missing.
    #[error("the text of a certificate is damaged; write the file anew")]
    Damaged,
}

/// Certificates as text, one after the other.
pub fn write_certificates<'a>(certificates: impl IntoIterator<Item = &'a CertificateDer<'static>>) -> String {
    certificates.into_iter().map(|certificate| write("CERTIFICATE", certificate)).collect()
}

/// The certificates of a text, in order.
///
/// # Errors
/// There is none, or one is damaged.
pub fn read_certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, BadPem> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let certificates = certificates.map_err(|_| BadPem::Damaged)?;
    if certificates.is_empty() { Err(BadPem::NoCertificate) } else { Ok(certificates) }
}

/// Bytes between a line that says what they are and one that ends it.
pub(crate) fn write(label: &str, bytes: &[u8]) -> String {
    let body = STANDARD.encode(bytes);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        // Base64 is ASCII: every place is between two characters.
        let (line, further) = rest.split_at(rest.len().min(LINE));
        text += line;
        text.push('\n');
        rest = further;
    }
    text + &format!("-----END {label}-----\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_read_as_they_are_written() {
        let certificates: Vec<_> = [vec![1; 3], vec![2; 48], vec![3; 500]].map(CertificateDer::from).to_vec();
        let text = write_certificates(&certificates);
        assert!(text.lines().all(|line| line.len() <= LINE), "{text}");
        assert_eq!(read_certificates(&text), Ok(certificates));
        assert_eq!(read_certificates("no certificate"), Err(BadPem::NoCertificate));
        let damaged = text.replace("AgIC", "????");
        assert_eq!(read_certificates(&damaged), Err(BadPem::Damaged));
        let short = &text[..text.len() - 30];
        assert_eq!(read_certificates(short), Err(BadPem::Damaged));
    }
}
