#!/bin/sh
# Builds the packages into DIR: .deb and .rpm, for amd64 and arm64 or those named, and
# of berth-apptainer and berth-nvidia-container-cli those that are the same for all.
#
#   build.sh DIR [amd64|arm64]…
#
# The same source gives the same bytes, wherever, whenever and by whomever it is built
# with the same Go and C compilers: VERSION and SOURCE_DATE_EPOCH, which are the
# checkout's last commit unless they are set, are all that isn't in the files.
set -eu
umask 022
export LC_ALL=C TZ=UTC

[ $# -ge 1 ] || { echo "usage: build.sh DIR [amd64|arm64]..." >&2; exit 2; }
mkdir -p "$1"
dist=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
go=${GO:-go}

# version is that of the last tag and of what came after, in words that both kinds of
# packages sort: 1.2.0, 1.2.0+5.gabcdef, and before any tag 0~20261121.gabcdef.
version() {
	if described=$(git describe --tags --match 'v[0-9]*' 2>/dev/null); then
		echo "${described#v}" | sed 's/-\([0-9]*\)-g/+\1.g/; s/-/~/'
	else
		git log -1 --abbrev=12 --format=0~%cd.g%h --date=format-local:%Y%m%d
	fi
}
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
export VERSION="${VERSION:-$(version)}"

# compile makes the programs of $ARCH as the Makefile does.
compile() {
	export GOOS=linux GOARCH="$ARCH" GOAMD64=v1 GOARM64=v8.0 GOFLAGS=-buildvcs=false GOWORK=off
	export CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" CGO_LDFLAGS= CGO_CPPFLAGS=
	say="-s -w -buildid= -X main.version=$VERSION"
	case $ARCH in
	amd64) triplet=x86_64-linux-gnu ;;
	arm64) triplet=aarch64-linux-gnu ;;
	*) echo "build.sh: berth isn't packaged for $ARCH" >&2; exit 2 ;;
	esac
	CGO_ENABLED=0 $go build -trimpath -tags urfave_cli_no_docs -ldflags "$say" -o "$STAGE/berth" ./cmd/berth
	CGO_ENABLED=1 CC=$triplet-gcc $go build -trimpath \
		-ldflags "$say -extldflags -Wl,--build-id=none" -o "$STAGE/berth-nvml" ./cmd/berth-nvml
	CGO_ENABLED=0 $go build -trimpath -ldflags "$say" -o "$STAGE/berth-runtime" ./cmd/berth-runtime
	CGO_ENABLED=0 $go build -trimpath -ldflags "$say" -o "$STAGE/berth-hook" ./cmd/berth-hook
	CGO_ENABLED=0 $go build -trimpath -ldflags "$say" -o "$STAGE/berth-monitor" ./cmd/berth-monitor
	CGO_ENABLED=0 $go build -trimpath -ldflags "$say" -o "$STAGE/berth-broker" ./cmd/berth-broker
	CGO_ENABLED=0 $go build -trimpath -ldflags "$say" -o "$STAGE/berth-containerd" ./cmd/berth-containerd
	# All that the programs contain is under licences that ask to be handed on.
	CGO_ENABLED=1 $go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/... |
		sort -u | while read -r module release dir; do
		for file in "$dir"/LICENSE* "$dir"/COPYING* "$dir"/NOTICE*; do
			[ -f "$file" ] || continue
			printf '======== %s %s: %s\n\n' "$module" "$release" "${file##*/}"
			cat "$file"
		done
	done | gzip -9n >"$STAGE/libraries.gz"
}

# package makes the .deb and the .rpm of a configuration.
package() {
	for kind in deb rpm; do
		$go tool -modfile=tools/nfpm/go.mod nfpm package --config "$1" --packager $kind --target "$dist" >/dev/null
	done
}

for ARCH in ${*:-amd64 arm64}; do
	export ARCH STAGE="$dist/stage/$ARCH"
	mkdir -p "$STAGE"
	(compile)
	gzip -9nc CHANGELOG.md >"$STAGE/changelog.gz"
	for page in packaging/man/*.[1-8]; do
		gzip -9nc "$page" >"$STAGE/${page##*/}.gz"
	done
	package packaging/nfpm.yaml
done
package packaging/nfpm-apptainer.yaml
package packaging/nfpm-nvidia-container-cli.yaml
ls "$dist"/*.deb "$dist"/*.rpm
