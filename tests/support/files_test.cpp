#include <filesystem>
#include <fstream>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "support/dynlib.h"
#include "support/files.h"
#include "temporary_folder.h"

using namespace flexc::support;
using flexc::test::TemporaryFolder;
namespace fs = std::filesystem;

TEST_CASE("files are read whole, through links too, up to a limit") {
    const TemporaryFolder folder;
    const auto file = folder.path() / "file";
    std::ofstream(file) << "12345";
    fs::create_symlink(file, folder.path() / "link");
    CHECK(read_file((folder.path() / "link").string(), 5).bytes == "12345");
    CHECK(read_file(file.string(), 4).problem == "5 bytes; at most 4 are read");
    CHECK(read_file(file.string(), 4).bytes.empty());
    std::ofstream(folder.path() / "empty").flush();
    CHECK(read_file((folder.path() / "empty").string(), 4).problem.empty());
}

TEST_CASE("what is no file neither blocks nor fills memory") {
    ::alarm(30);
    const TemporaryFolder folder;
    const std::string pipe = (folder.path() / "pipe").string();
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    CHECK(read_file(pipe, 100).problem == "it is a pipe, not a file");
    CHECK(read_file("/dev/zero", 100).problem == "it is a device, not a file");
    CHECK(read_file(folder.path().string(), 100).problem == "it is a folder, not a file");
    CHECK_FALSE(read_file(pipe, 100).absent);
    CHECK(read_file((folder.path() / "none").string(), 100).absent);
    CHECK(read_file(pipe + "/below", 100).absent);
    CHECK(special_file((folder.path() / "none").string()).empty());
    ::alarm(0);
}

TEST_CASE("a pipe or a device in the place of a library is refused at once") {
    ::alarm(30);
    const TemporaryFolder folder;
    const std::string pipe = (folder.path() / "libx.so").string();
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const auto found = find_library({.patterns = {pipe, "/dev/zero"}});
    CHECK_FALSE(found.library);
    CHECK(found.describe().find("libx.so: it is a pipe, not a library") != std::string::npos);
    CHECK(found.describe().find("/dev/zero: it is a device, not a library") != std::string::npos);
    ::alarm(0);
}
