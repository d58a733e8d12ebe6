//! Certificates for both sides of a system, of an authority that its server makes.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use upcall_bench::child::Outcome;
use upcall_bench::hosts::child::Place;

/// Name in the server's certificate.
pub const SERVER: &str = "server";

/// A certificate and its key, in PEM.
pub struct Proof {
    pub certificate: String,
    pub key: String,
}

/// Makes an authority, and the certificates that it signs, each for these names. Returns the
/// authority's certificate first.
fn prove<const N: usize>(certified: [Vec<String>; N]) -> Outcome<(String, [Proof; N])> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let mut proofs = Vec::new();
    for names in certified {
        let key = KeyPair::generate()?;
        let signed = CertificateParams::new(names)?.signed_by(&key, &authority)?;
        proofs.push(Proof { certificate: signed.pem(), key: key.serialize_pem() });
    }
    Ok((authority.pem(), proofs.try_into().map_err(|_| "a proof for each name")?))
}

/// The files for a system's client: the authority, and the client's certificate and key.
pub fn files(place: &Place, system: &str) -> [PathBuf; 3] {
    ["authority", "client", "client-key"].map(|name| place.dir.join(format!("{system}-{name}.pem")))
}

/// Makes a system's certificates, and writes the client's files. Returns the authority's
/// certificate, and the server's proof.
pub fn make(place: &Place, system: &str) -> Outcome<(String, Proof)> {
    // The client of NATS knows the server by its address only.
    let server = vec![SERVER.to_owned(), place.server.ip().to_string()];
    let (authority, [server, client]) = prove([server, vec!["client".to_owned()]])?;
    let texts = [&authority, &client.certificate, &client.key];
    for (file, text) in files(place, system).iter().zip(texts) {
        fs::write(file, text)?;
    }
    Ok((authority, server))
}
