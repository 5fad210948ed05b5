//! The fields of certificates and requests that `rustls-webpki` does not give out: validity, usage, and all of a request.
//!
//! Every field is read in its place and everything must be used up; what is not needed is skipped as one value.

use yasna::{
    ASN1Error, ASN1ErrorKind, ASN1Result, BERReader, BERReaderSeq, Tag,
    models::ObjectIdentifier,
    tags::{TAG_BITSTRING, TAG_UTCTIME},
};

const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];
const SERVER_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 2];
/// The tag of the extensions in a certificate.
const EXTENSIONS: u64 = 3;

/// Of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CertificateFields {
    /// Seconds since 1970.
    pub(crate) not_before_s: i64,
    /// Seconds since 1970.
    pub(crate) not_after_s: i64,
    /// Says that it is for servers.
    pub(crate) is_for_servers: bool,
    /// Says that it is for clients.
    pub(crate) is_for_clients: bool,
}

/// Of a request for a certificate (PKCS #10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestFields {
    /// What is signed.
    pub(crate) signed: Vec<u8>,
    /// The kind of key, and its curve.
    pub(crate) key_oids: (ObjectIdentifier, Option<ObjectIdentifier>),
    /// The public key.
    pub(crate) key: Vec<u8>,
    /// The kind of signature.
    pub(crate) signature_oid: ObjectIdentifier,
    /// By the key.
    pub(crate) signature: Vec<u8>,
}

/// Values in one another at most.
const DEPTH_MAX: usize = 24;

/// Reads DER whose lengths are sound: yasna adds lengths up without checks, and would panic at hostile ones.
fn parse<T>(der: &[u8], read: impl for<'a, 'b> FnOnce(BERReader<'a, 'b>) -> ASN1Result<T>) -> ASN1Result<T> {
    if !is_sound(der, DEPTH_MAX) {
        return Err(ASN1Error::new(ASN1ErrorKind::Invalid));
    }
    yasna::parse_der(der, read)
}

/// Whether each value ends where the one around it does, or before.
fn is_sound(mut der: &[u8], depth: usize) -> bool {
    while let Some((tag, rest)) = der.split_first() {
        // No certificate has tags of several bytes, or lengths that are open or of more than four.
        if tag & 0x1f == 0x1f {
            return false;
        }
        let Some((first, rest)) = rest.split_first() else { return false };
        let (length, rest) = match first {
            0..=0x7f => (usize::from(*first), rest),
            0x81..=0x84 => {
                let Some((bytes, rest)) = rest.split_at_checked(usize::from(first & 0x7f)) else {
                    return false;
                };
                (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return false,
        };
        let Some((value, rest)) = rest.split_at_checked(length) else { return false };
        let is_made_of_values = tag & 0x20 != 0;
        if is_made_of_values && (depth == 0 || !is_sound(value, depth - 1)) {
            return false;
        }
        der = rest;
    }
    true
}

/// Reads a certificate in DER; `None`: it is not one.
pub(crate) fn read_certificate(der: &[u8]) -> Option<CertificateFields> {
    parse(der, |reader| {
        reader.read_sequence(|certificate| {
            let fields = certificate.next().read_sequence(read_certificate_body)?;
            // The kind of signature, and the signature.
            certificate.next().read_der()?;
            certificate.next().read_der()?;
            Ok(fields)
        })
    })
    .ok()
}

fn read_certificate_body(body: &mut BERReaderSeq<'_, '_>) -> ASN1Result<CertificateFields> {
    // Version, serial number, kind of signature, issuer.
    body.next().read_tagged(Tag::context(0), |reader| reader.read_u8())?;
    for _ in 0..3 {
        body.next().read_der()?;
    }
    let (not_before_s, not_after_s) = body
        .next()
        .read_sequence(|validity| Ok((read_time(validity.next())?, read_time(validity.next())?)))?;
    // Subject and public key.
    body.next().read_der()?;
    body.next().read_der()?;
    let mut fields =
        CertificateFields { not_before_s, not_after_s, is_for_servers: false, is_for_clients: false };
    body.next().read_tagged(Tag::context(EXTENSIONS), |extensions| {
        extensions.read_sequence_of(|extension| {
            extension.read_sequence(|extension| {
                let oid = extension.next().read_oid()?;
                extension.read_default(false, |reader| reader.read_bool())?;
                let value = extension.next().read_bytes()?;
                if is(&oid, EXTENDED_KEY_USAGE) {
                    read_usages(&value, &mut fields)?;
                }
                Ok(())
            })
        })
    })?;
    Ok(fields)
}

fn read_usages(value: &[u8], fields: &mut CertificateFields) -> ASN1Result<()> {
    parse(value, |usages| {
        usages.read_sequence_of(|usage| {
            let oid = usage.read_oid()?;
            fields.is_for_servers |= is(&oid, SERVER_AUTH);
            fields.is_for_clients |= is(&oid, CLIENT_AUTH);
            Ok(())
        })
    })
}

fn read_time(reader: BERReader<'_, '_>) -> ASN1Result<i64> {
    if reader.lookahead_tag()? == TAG_UTCTIME {
        return Ok(reader.read_utctime()?.datetime().unix_timestamp());
    }
    Ok(reader.read_generalized_time()?.datetime().unix_timestamp())
}

/// Reads a request in DER; `None`: it is not one.
pub(crate) fn read_request(der: &[u8]) -> Option<RequestFields> {
    parse(der, |reader| {
        reader.read_sequence(|request| {
            let ((key_oids, key), signed) = {
                let (key, signed) =
                    request.read_with_buffer(|request| request.next().read_sequence(read_request_body))?;
                (key, signed.to_vec())
            };
            let (signature_oid, _) = request.next().read_sequence(read_algorithm)?;
            let signature = read_bits(request.next())?;
            Ok(RequestFields { signed, key_oids, key, signature_oid, signature })
        })
    })
    .ok()
}

type KeyFields = ((ObjectIdentifier, Option<ObjectIdentifier>), Vec<u8>);

fn read_request_body(body: &mut BERReaderSeq<'_, '_>) -> ASN1Result<KeyFields> {
    // Version and subject.
    body.next().read_u8()?;
    body.next().read_der()?;
    let key = body.next().read_sequence(|key| {
        let oids = key.next().read_sequence(read_algorithm)?;
        Ok((oids, read_bits(key.next())?))
    })?;
    // Attributes: names and usages that are not followed.
    body.read_optional(|reader| reader.read_der())?;
    Ok(key)
}

/// A kind of key or signature, and its parameter if that is named.
fn read_algorithm(
    algorithm: &mut BERReaderSeq<'_, '_>,
) -> ASN1Result<(ObjectIdentifier, Option<ObjectIdentifier>)> {
    let oid = algorithm.next().read_oid()?;
    let parameter = algorithm.read_optional(|reader| reader.read_der())?;
    Ok((oid, parameter.and_then(|der| parse(&der, |reader| reader.read_oid()).ok())))
}

/// A bit string of whole bytes.
fn read_bits(reader: BERReader<'_, '_>) -> ASN1Result<Vec<u8>> {
    if reader.lookahead_tag()? != TAG_BITSTRING {
        return Err(ASN1Error::new(ASN1ErrorKind::Invalid));
    }
    let (bytes, n_bits) = reader.read_bitvec_bytes()?;
    if n_bits == 8 * bytes.len() { Ok(bytes) } else { Err(ASN1Error::new(ASN1ErrorKind::Invalid)) }
}

/// Whether an identifier is the one with these numbers.
pub(crate) fn is(oid: &ObjectIdentifier, numbers: &[u64]) -> bool {
    oid.components() == numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{requests::LeafKey, signer::Signer};

    #[test]
    fn hostile_lengths_are_refused_and_nothing_panics() {
        // A serial number that would end before it begins.
        let mut body = vec![0xa0, 3, 2, 1, 2, 2, 0x88];
        body.extend([0xff; 7]);
        body.extend([0xf0, 0x30, 0]);
        let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
        let inner = [&[0x30, length(&body)][..], &body].concat();
        assert_eq!(read_certificate(&[&[0x30, length(&inner)][..], &inner].concat()), None);

        let root = Signer::make("c".parse().unwrap()).unwrap().root().der().to_vec();
        let request = LeafKey::generate().unwrap().request().unwrap();
        assert!(read_certificate(&root).is_some() && read_request(&request).is_some());
        for whole in [root, request] {
            for at in 0..whole.len() {
                for byte in [0, 0x1f, 0x30, 0x7f, 0x80, 0x81, 0x84, 0x88, 0xff] {
                    let mut changed = whole.clone();
                    changed[at] = byte;
                    // Whatever it says, it says something.
                    let _read = (read_certificate(&changed), read_request(&changed));
                    let _cut = (read_certificate(&changed[..at]), read_request(&changed[..at]));
                }
            }
        }
    }
}
