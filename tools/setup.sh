# Sourced by tools/dev: finds what the build needs and installs what is missing. Debian and Ubuntu.
# Uses: $root, say, die.

apt_updated=

apt_has() { dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^ii'; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
        die "root is needed to run: $*"
    fi
}

apt_update_once() {
    [ -z "$apt_updated" ] || return 0
    # One broken third-party source must not stop the packages of the distribution.
    as_root apt-get update -qq || say "apt-get update reported an error; going on"
    apt_updated=1
}

apt_need() {
    local package missing=()
    for package in "$@"; do apt_has "$package" || missing+=("$package"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing ${missing[*]}"
    apt_update_once
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "${missing[@]}" >"$root/build/apt.log" 2>&1 ||
        { tail -n 20 "$root/build/apt.log" >&2; die "apt-get could not install: ${missing[*]}"; }
}

# The newest LLVM from 15 up: one that is installed wins over one that could be.
installed_llvm() {
    local folder
    for folder in $(ls -d /usr/lib/llvm-* 2>/dev/null | sort -t- -k2 -rn); do
        local version=${folder##*-}
        [ "$version" -ge 15 ] 2>/dev/null && [ -e "$folder/lib/cmake/llvm/LLVMConfig.cmake" ] &&
            { echo "$version"; return; }
    done
}

need_llvm() {
    [ -z "$(installed_llvm)" ] || return 0
    apt_update_once
    local version
    # 19 is what flexc is developed with; after it, the newest that the distribution has.
    for version in 19 $(apt-cache search --names-only '^llvm-[0-9]+-dev$' |
        sed 's/^llvm-\([0-9]*\)-dev.*/\1/' | sort -rn); do
        [ "$version" -ge 15 ] || continue
        apt-cache show "llvm-$version-dev" >/dev/null 2>&1 && { apt_need "llvm-$version-dev"; return; }
    done
    die "no package llvm-N-dev with N >= 15 was found"
}

# The path of a libnvrtc that the loader would not find by itself, or nothing.
nvrtc_in_build() {
    ls "$root"/build/deps/python/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.* 2>/dev/null |
        grep -v builtins | head -n 1
}

nvrtc_on_machine() {
    ldconfig -p 2>/dev/null | grep -q 'libnvrtc\.so' ||
        ls /usr/local/cuda*/lib64/libnvrtc.so* /usr/local/cuda*/targets/*/lib/libnvrtc.so* \
            >/dev/null 2>&1
}

# NVRTC is needed to compile for a GPU, not to build. Without it the tests that need it skip.
need_nvrtc() {
    [ -z "${FLEXC_NVRTC:-}" ] && ! nvrtc_on_machine || return 0
    if [ -z "$(nvrtc_in_build)" ]; then
        apt_need python3-venv
        say "installing NVRTC under build/deps"
        { python3 -m venv "$root/build/deps/python" &&
            "$root/build/deps/python/bin/pip" install --quiet --disable-pip-version-check \
                nvidia-cuda-nvrtc; } >"$root/build/pip.log" 2>&1 ||
            { say "NVRTC could not be installed (build/pip.log); GPU compile tests will skip"; return 0; }
    fi
    FLEXC_NVRTC=$(nvrtc_in_build)
    export FLEXC_NVRTC
}

setup_build() {
    mkdir -p "$root/build"
    command -v apt-get >/dev/null || { say "no apt-get here: the packages of tools/setup.sh are assumed"; return 0; }
    apt_need cmake ninja-build g++ ccache mold python3 libfmt-dev libspdlog-dev doctest-dev \
        libcli11-dev nlohmann-json3-dev libtbb-dev libxsmm-dev libxxhash-dev libssl-dev zlib1g-dev libzstd-dev \
        libopenmpi-dev openmpi-bin
    need_llvm
}

setup_lint() {
    setup_build
    command -v apt-get >/dev/null || return 0
    # Those of the installed LLVM: a machine's own may be older, and lay files out in another way.
    local version
    version=$(installed_llvm)
    apt_need "clang-format-$version" "clang-tidy-$version"
}

# clang-format-19 if it is there, else the newest: versions disagree about layout.
newest_tool() {
    local name
    for name in "$1-19" $(compgen -c "$1-" | grep -E "^$1-[0-9]+$" | sort -t- -k3 -rn | uniq); do
        command -v "$name" >/dev/null && { echo "$name"; return; }
    done
    true
}
