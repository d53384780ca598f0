#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/dynlib.h"
#include "temporary_folder.h"

using namespace flexc::support;
using flexc::test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

struct Setting {
    Setting(const char* variable, const std::string& value) : name(variable) {
        ::setenv(variable, value.c_str(), 1);
    }
    ~Setting() { ::unsetenv(name); }
    const char* name;
};

} // namespace

TEST_CASE("a soname is found, with its path and its symbols") {
    const auto search = find_library({.name = "maths", .sonames = {"libnone.so.9", "libm.so.6"}});
    REQUIRE(search);
    CHECK(search.library->path().find("/libm.so.6") != std::string::npos);
    double (*cosine)(double) = nullptr;
    REQUIRE(search.library->symbol("cos", cosine));
    CHECK(cosine(0.0) == 1.0);
    CHECK_FALSE(search.library->symbol("no_such_symbol", cosine));
    CHECK((cosine == nullptr));
    REQUIRE(search.attempts.size() == 2);
    CHECK(search.attempts[0].path == "libnone.so.9");
    CHECK(search.attempts[0].outcome.find("libnone.so.9") != std::string::npos);
    CHECK(search.attempts[1].outcome == "found");
}

TEST_CASE("an exact path that fails is the answer, whatever else there is") {
    const Setting setting("FLEXC_NVRTC", "/nowhere/libnvrtc.so");
    const auto search =
        find_library({.name = "maths", .exact_path = Variable::nvrtc, .sonames = {"libm.so.6"}});
    CHECK_FALSE(search);
    REQUIRE(search.attempts.size() == 1);
    CHECK(search.describe().find("/nowhere/libnvrtc.so (from FLEXC_NVRTC)") != std::string::npos);
}

TEST_CASE("an empty variable is an unset one") {
    const Setting setting("FLEXC_NVRTC", "");
    CHECK(find_library({.exact_path = Variable::nvrtc, .sonames = {"libm.so.6"}}));
}

TEST_CASE("a copy that the process has loaded is shared") {
    const auto search = find_library({.loaded_prefix = "libc.so", .sonames = {"libm.so.6"}});
    REQUIRE(search);
    CHECK(search.library->path().find("libc.so") != std::string::npos);
    CHECK(search.describe().find("already loaded") != std::string::npos);
    CHECK_FALSE(find_library({.loaded_prefix = "libnot-loaded.so"}));
}

TEST_CASE("what is objected to is passed over, and the reason is kept") {
    const auto search = find_library({
        .sonames = {"libc.so.6", "libm.so.6"},
        .objection = [](const DynamicLibrary& library) -> std::string {
            return library.symbol("cos") != nullptr ? "" : "has no cosine";
        },
    });
    REQUIRE(search);
    CHECK(search.library->path().find("libm") != std::string::npos);
    CHECK(search.attempts.at(0).outcome == "has no cosine");
}

TEST_CASE("patterns: newest first, damaged files passed over, unset variables skipped") {
    const TemporaryFolder folder;
    const auto real = find_library({.sonames = {"libm.so.6"}});
    REQUIRE(real);
    fs::create_directory(folder.path() / "odd[1]*");
    std::ofstream(folder.path() / "odd[1]*" / "libx.so.12") << "not a library";
    fs::copy_file(real.library->path(), folder.path() / "odd[1]*" / "libx.so.9");
    const Setting setting("FLEXC_TEST_ROOT", (folder.path() / "odd[1]*").string());
    const auto search = find_library({.patterns = {"${FLEXC_TEST_UNSET}/libx.so.*", "/none/*.so",
                                                   "${FLEXC_TEST_ROOT}/libx.so.*"}});
    REQUIRE(search);
    CHECK(search.library->path().ends_with("/libx.so.9"));
    REQUIRE(search.attempts.size() == 4);
    CHECK(search.attempts[0].outcome.find("not set") != std::string::npos);
    CHECK(search.attempts[1].outcome == "no such file");
    CHECK(search.attempts[2].path.ends_with("libx.so.12"));
    CHECK(search.describe().find("\n  /none/*.so: no such file\n") != std::string::npos);
}

TEST_CASE("numbers in names compare as numbers") {
    CHECK(version_less("libnvrtc.so.9", "libnvrtc.so.12"));
    CHECK(version_less("cuda-12.9/lib", "cuda-13.0/lib"));
    CHECK(version_less("cuda-12.9", "cuda-12.10"));
    CHECK(version_less("a", "a1"));
    CHECK(version_less("a1", "b0"));
    CHECK_FALSE(version_less("a012", "a12"));
    CHECK_FALSE(version_less("a12", "a012"));
    CHECK_FALSE(version_less("x", "x"));
    CHECK(version_less("v99999999999999999999998", "v99999999999999999999999"));
}

TEST_CASE("the folder of our own code holds this program") {
    CHECK(fs::path(own_directory()) == fs::canonical("/proc/self/exe").parent_path());
}
