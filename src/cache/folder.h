// A folder that only this user can write, and the system calls on its files. Everything is done
// relative to its descriptor, so nobody can swap the path underneath.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/stat.h>

namespace flexc::cache {

class Descriptor {
  public:
    explicit Descriptor(int number = -1) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~Descriptor();
    int number() const { return number_; }
    explicit operator bool() const { return number_ >= 0; }
    int close(); // 0 or errno; some file systems tell only here that a write failed

  private:
    int number_;
};

// The state of a file when it was last examined.
struct FileStamp {
    dev_t device = 0;
    ino_t inode = 0;
    std::uint64_t size = 0;
    timespec modified{};

    bool operator==(const FileStamp& other) const;
    static FileStamp of(const struct stat& status);
};

struct FolderFile {
    std::string name;
    FileStamp stamp;
};

class Folder {
  public:
    struct Opened;
    // Refuses a folder that is a symbolic link, another user's, or writable by others.
    static Opened open(const std::string& path, bool create);

    struct File {
        Descriptor descriptor;
        struct stat status{};
        int error = 0; // errno when there is no descriptor
    };
    File open_file(const std::string& name) const;
    // Creates a file with a unique name.
    File create_temporary(std::string& name) const;
    // Gives a finished temporary file its name. 0, EEXIST when the name is taken, or errno.
    int publish(const std::string& temporary, const std::string& name, bool hard_links) const;

    std::vector<FolderFile> files() const; // regular ones
    std::optional<FileStamp> stamp_of(const std::string& name) const;
    bool remove(const std::string& name) const;
    void remove_if_unchanged(const std::string& name, const FileStamp& stamp) const;

  private:
    explicit Folder(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}
    Descriptor descriptor_;
};

struct Folder::Opened {
    std::optional<Folder> folder;
    bool absent = false; // and not to be created
    std::string problem; // otherwise, for the user
};

inline constexpr std::string_view kTemporaryPrefix = ".flexc-tmp-";

// Complete transfers, despite signals and short counts. Returns 0, errno, or -1 if the file ends
// early.
int read_all(int descriptor, char* bytes, std::size_t size, std::uint64_t offset);
int write_all(int descriptor, std::string_view bytes);

std::string system_message(int error);

} // namespace flexc::cache
