#include "host_module.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>

namespace flexc::test {

namespace {

std::string read_file(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

const std::string kShimFolder = FLEXC_SOURCE_DIR "/tests/cuda/shim";

std::string make_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "flexc-host-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    return pattern;
}

int compile(const std::string& arguments, const std::string& output, const std::string& log) {
    const char* compiler = std::getenv("CXX");
    const std::string command = std::string(compiler == nullptr ? "c++" : compiler) +
                                " -std=c++17 -O0 -w -fwrapv -ffp-contract=off -fPIC " + arguments +
                                " -o '" + output + "' > '" + log + "' 2>&1";
    return std::system(command.c_str());
}

// The shim's headers are most of what there is to compile. Where a compiler finds nothing of use in
// this folder, it reads the header itself.
struct PrecompiledShim {
    std::string folder = make_folder();
    PrecompiledShim() {
        compile("-x c++-header '" + kShimFolder + "/cuda_on_host.h'",
                folder + "/cuda_on_host.h.gch", folder + "/log");
    }
    ~PrecompiledShim() {
        std::error_code ignored;
        std::filesystem::remove_all(folder, ignored);
    }
};

} // namespace

HostModule::HostModule(const std::string& text, const std::string& mod_text)
    : folder_(make_folder()) {
    static const PrecompiledShim kShim;
    std::ofstream(folder_ + "/module.cpp") << "#include \"cuda_on_host.h\"\n" << text;
    if (!mod_text.empty()) std::ofstream(folder_ + "/mod.cuh") << mod_text;
    const int status =
        compile("-I '" + kShim.folder + "' -I '" + kShimFolder + "' -I '" + FLEXC_SOURCE_DIR +
                    "/templates' -I '" + folder_ + "' -shared '" + folder_ + "/module.cpp'",
                folder_ + "/module.so", folder_ + "/log");
    REQUIRE_MESSAGE(status == 0, read_file(folder_ + "/log").substr(0, 4000));
    handle_ = ::dlopen((folder_ + "/module.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(handle_ != nullptr, ::dlerror());
}

HostModule::~HostModule() {
    if (handle_ != nullptr) ::dlclose(handle_);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

void* HostModule::symbol(const std::string& name) const {
    void* found = ::dlsym(handle_, name.c_str());
    REQUIRE_MESSAGE(found != nullptr, name);
    return found;
}

} // namespace flexc::test
