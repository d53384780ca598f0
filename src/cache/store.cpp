#include "cache/store.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "cache/folder.h"
#include "cache/pack.h"
#include "support/env.h"
#include "support/text.h"

namespace flexc::cache {

namespace {

bool is_temporary(std::string_view name) { return name.starts_with(kTemporaryPrefix); }

std::int64_t age_in_seconds(const FileStamp& stamp) {
    return static_cast<std::int64_t>(std::time(nullptr)) - stamp.modified.tv_sec;
}

std::int64_t steady_seconds() {
    // Never 0, which means "not measured yet".
    return 1 + std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
                   .count();
}

enum class Reading { whole, damaged, unreadable };

Reading read_entry(const Folder::File& file, const Key& key, Entry& entry) {
    if (!S_ISREG(file.status.st_mode) || file.status.st_uid != ::geteuid() ||
        (file.status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return Reading::damaged;
    if (static_cast<std::uint64_t>(file.status.st_size) > kMaxEntryBytes) return Reading::damaged;
    std::string bytes(static_cast<std::size_t>(file.status.st_size), '\0');
    if (const int error = read_all(file.descriptor.number(), bytes.data(), bytes.size(), 0))
        return error < 0 ? Reading::damaged : Reading::unreadable;
    auto decoded = decode_entry(bytes, key);
    if (!decoded) return Reading::damaged;
    entry = std::move(*decoded);
    return Reading::whole;
}

// Returns 0 or errno. The data is flushed to disk before the file gets its name, so that a power
// failure cannot leave a name without data.
int write_entry(Folder::File& file, const Key& key, const Entry& entry) {
    const int descriptor = file.descriptor.number();
    if (const int error = write_all(descriptor, encode_entry(key, entry))) return error;
    // EINVAL: the file system does not support it.
    if (::fdatasync(descriptor) != 0 && errno != EINVAL) return errno;
    return file.descriptor.close();
}

} // namespace

std::string cache_directory(const CacheOptions& options) {
    const auto chosen = [&]() -> std::filesystem::path {
        if (!options.directory.empty()) return options.directory;
        if (const auto own = support::environment(support::Variable::cache_dir)) return *own;
        // By the XDG rules a relative path there counts as unset.
        if (const auto xdg = support::foreign_environment("XDG_CACHE_HOME");
            xdg && xdg->front() == '/')
            return *xdg + "/flexc";
        if (const auto home = support::foreign_environment("HOME"); home && home->front() == '/')
            return *home + "/.cache/flexc";
        return {};
    }();
    if (chosen.empty()) return {};
    std::error_code error;
    std::string path = std::filesystem::absolute(chosen, error).lexically_normal().string();
    if (error) return {};
    // With a trailing slash, a symbolic link would be followed.
    while (path.size() > 1 && path.back() == '/')
        path.pop_back();
    return path;
}

Store::Store(std::string directory, const CacheOptions& options, const StoreSettings& settings)
    : directory_(std::move(directory)), pack_(pack_folder(options)), wanted_(options.disk),
      max_bytes_(options.max_bytes), settings_(settings) {}

std::shared_ptr<Store> Store::open(const CacheOptions& options, const StoreSettings& settings) {
    return std::shared_ptr<Store>(
        new Store(options.disk ? cache_directory(options) : std::string(), options, settings));
}

void Store::warn_once(const support::Log& log, const std::string& problem) {
    if (warned_.exchange(true)) return;
    log.warn("compiled kernels are not kept: {}{}{}", directory_, directory_.empty() ? "" : ": ",
             problem);
}

std::optional<Folder> Store::enter(bool create, const support::Log& log) {
    if (!wanted_) return std::nullopt;
    if (directory_.empty()) {
        warn_once(log, "none of FLEXC_CACHE_DIR, XDG_CACHE_HOME and HOME names a folder");
        return std::nullopt;
    }
    Folder::Opened opened = Folder::open(directory_, create);
    if (!opened.folder && !opened.absent) warn_once(log, opened.problem);
    return std::move(opened.folder);
}

std::optional<Entry> Store::load(const Key& key, const support::Log& log) {
    std::optional<Entry> entry;
    try {
        if (!pack_.empty() && !checked_pack_.exchange(true))
            if (const PackState pack = check_pack(pack_); !pack.problem.empty())
                log.warn("the pack {} gives no kernels: {}", pack_, pack.problem);
        entry = load_from_pack(pack_, key, log);
        if (entry) return entry;
        entry = lookup(key, log);
    } catch (const std::exception& exception) {
        log.debug("cache: {}: {}", key.digest.hex(), exception.what());
    }
    if (wanted_) ++(entry ? hits_ : misses_);
    return entry;
}

std::optional<Entry> Store::lookup(const Key& key, const support::Log& log) {
    const auto folder = enter(false, log);
    if (!folder) return std::nullopt;
    const std::string name = entry_name(key.digest);
    const Folder::File file = folder->open_file(name);
    // ELOOP: a symbolic link where we only ever put files.
    if (!file.descriptor && file.error == ELOOP) {
        ++corrupt_;
        folder->remove(name);
        return std::nullopt;
    }
    if (!file.descriptor) {
        if (file.error != ENOENT) log.debug("cache: {}: {}", name, system_message(file.error));
        return std::nullopt;
    }
    Entry entry;
    const FileStamp stamp = FileStamp::of(file.status);
    switch (read_entry(file, key, entry)) {
    case Reading::whole: break;
    case Reading::damaged:
        ++corrupt_;
        log.info("cache: {} is damaged or stale and is made anew", name);
        folder->remove_if_unchanged(name, stamp);
        return std::nullopt;
    case Reading::unreadable: log.debug("cache: {} cannot be read", name); return std::nullopt;
    }
    // Only rarely, because a write per read would wear the disk. A time in the future is corrected
    // too.
    if (std::abs(age_in_seconds(stamp)) > settings_.touch_interval.count())
        ::futimens(file.descriptor.number(), nullptr);
    return entry;
}

void Store::publish(const Key& key, const Entry& entry, const support::Log& log) {
    const std::uint64_t size =
        kHeaderSize + key.text.size() + entry.metadata.size() + entry.payload.size();
    if (size > std::min(max_bytes_, kMaxEntryBytes)) return;
    try {
        const auto folder = enter(true, log);
        if (!folder) return;
        std::string temporary;
        Folder::File file = folder->create_temporary(temporary);
        int error = file.error;
        if (error == 0) {
            error = write_entry(file, key, entry);
            if (error == 0)
                error = folder->publish(temporary, entry_name(key.digest), settings_.hard_links);
            if (error != 0) folder->remove(temporary);
        }
        // EEXIST: another made the same. ENOENT: somebody cleared the cache meanwhile.
        if (error == EEXIST || error == ENOENT) return;
        if (error != 0) {
            warn_once(log, system_message(error));
            return;
        }
        ++published_;
        if (claim_measuring(size)) make_room(*folder);
    } catch (const std::exception& exception) {
        log.debug("cache: {}: {}", key.digest.hex(), exception.what());
    }
}

void Store::remove(const Key& key, const support::Log& log) {
    if (const auto folder = enter(false, log)) folder->remove(entry_name(key.digest));
}

void Store::discard(const Key& key, const support::Log& log) {
    ++corrupt_;
    remove(key, log);
}

// Adds to the believed size of the folder; true if this caller should measure it.
bool Store::claim_measuring(std::uint64_t added) {
    const std::uint64_t believed = believed_bytes_.fetch_add(added) + added;
    std::int64_t measured = measured_at_.load();
    const std::int64_t now = steady_seconds();
    const bool due = measured == 0 || now - measured >= settings_.scan_interval.count();
    return (due && measured_at_.compare_exchange_strong(measured, now)) || believed > max_bytes_;
}

void Store::make_room(const Folder& folder) {
    std::vector<FolderFile> entries;
    std::uint64_t total = 0;
    for (auto& file : folder.files()) {
        if (is_temporary(file.name)) {
            // Left by a process that was killed; a running one finishes within seconds.
            if (age_in_seconds(file.stamp) > settings_.stale_temporary.count())
                folder.remove(file.name);
        } else if (is_entry_name(file.name)) {
            total += file.stamp.size;
            entries.push_back(std::move(file));
        }
    }
    if (total > max_bytes_) {
        std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
            return std::pair(a.stamp.modified.tv_sec, a.stamp.modified.tv_nsec) <
                   std::pair(b.stamp.modified.tv_sec, b.stamp.modified.tv_nsec);
        });
        const std::uint64_t target = max_bytes_ / 5 * 4;
        for (const auto& entry : entries) {
            if (total <= target) break;
            if (!folder.remove(entry.name)) continue;
            ++evicted_;
            total -= entry.stamp.size;
        }
    }
    believed_bytes_ = total;
}

StoreStatistics Store::statistics(const support::Log& log) {
    StoreStatistics result;
    result.hits = hits_;
    result.misses = misses_;
    result.corrupt = corrupt_;
    result.published = published_;
    result.evicted = evicted_;
    // An absent folder is no fault: it is made when there is something to keep.
    if (!wanted_ || directory_.empty()) return result;
    const Folder::Opened opened = Folder::open(directory_, false);
    if (!opened.folder && !opened.absent) {
        warn_once(log, opened.problem);
        return result;
    }
    result.directory = directory_;
    if (!opened.folder) return result;
    for (const auto& file : opened.folder->files()) {
        if (!is_entry_name(file.name)) continue;
        ++result.entries;
        result.bytes += file.stamp.size;
    }
    return result;
}

bool Store::clear(const support::Log& log) {
    const auto folder = enter(false, log);
    if (!folder) return true;
    bool all = true;
    for (const auto& file : folder->files())
        if (is_entry_name(file.name) || is_temporary(file.name))
            all = (folder->remove(file.name) || !folder->stamp_of(file.name)) && all;
    believed_bytes_ = 0;
    return all;
}

std::shared_ptr<Store> Stores::get(const CacheOptions& options) {
    const std::string name =
        formatted("{}:{}:{}:{}", options.disk, options.max_bytes,
                  options.disk ? cache_directory(options) : "", pack_folder(options));
    const std::lock_guard lock(mutex_);
    auto& store = stores_[name];
    if (!store) store = Store::open(options);
    return store;
}

} // namespace flexc::cache
