#!/bin/sh
# Makes the certificates beside it, for tests only: sh tests/unit/backends/certificates/make.sh
# ca.pem signed node.pem and expired.pem, other_ca.pem signed stranger.pem. Needs OpenSSL 3.
# locked.key is node.key with a password. The CAs' keys are thrown away. All but expired.pem are good from 2020 to 2120.
set -eu
cd "$(dirname "$0")"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

: > "$scratch/index"
cat > "$scratch/ca.cnf" <<END
[ca]
default_ca = d
[d]
database = $scratch/index
new_certs_dir = $scratch
rand_serial = yes
unique_subject = no
default_md = sha256
policy = p
[p]
commonName = supplied
[authority]
basicConstraints = critical, CA:true
keyUsage = keyCertSign
[member]
basicConstraints = CA:false
END

request() { # name, where its key goes
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc \
        -subj "/CN=kvferry test $1" -keyout "$2" -out "$scratch/$1.csr"
}

sign() { # name of the request, certificate, last day, extensions, then who signs
    name=$1 out=$2 end=$3 extensions=$4
    shift 4
    openssl ca -batch -notext -config "$scratch/ca.cnf" -extensions "$extensions" \
        -startdate 20200101000000Z -enddate "$end" -in "$scratch/$name.csr" -out "$out" "$@"
}

for ca in ca other_ca; do
    request $ca "$scratch/$ca.key"
    sign $ca $ca.pem 21200101000000Z authority -selfsign -keyfile "$scratch/$ca.key"
done
request node node.key
request stranger stranger.key
openssl ec -aes256 -passout pass:secret -in node.key -out locked.key
chmod 644 ./*.key
sign node node.pem 21200101000000Z member -cert ca.pem -keyfile "$scratch/ca.key"
sign node expired.pem 20200201000000Z member -cert ca.pem -keyfile "$scratch/ca.key"
sign stranger stranger.pem 21200101000000Z member -cert other_ca.pem -keyfile "$scratch/other_ca.key"
