#include "native/base/regular_files.h"

#include <filesystem>
#include <system_error>

namespace millpond::base {
namespace {

namespace fs = std::filesystem;

const char* KindName(fs::file_type type) {
  switch (type) {
    case fs::file_type::fifo:
      return "a named pipe";
    case fs::file_type::socket:
      return "a socket";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    default:
      return "of an unknown type";
  }
}

Status CheckType(const fs::path& path, fs::file_type type) {
  switch (type) {
    case fs::file_type::none:  // The type cannot be read; the file's reader reports the reason.
    case fs::file_type::not_found:
    case fs::file_type::regular:
    case fs::file_type::directory:
      return {};
    default:
      return FailedPrecondition(path.string() + " is " + KindName(type) +
                                " and not a regular file; put a file in its place");
  }
}

template <typename Iterator>
Status CheckEntries(const fs::path& directory) {
  std::error_code error;
  // An error ends the walk: the reader of the entry reports it.
  for (Iterator entry(directory, error); !error && entry != Iterator(); entry.increment(error)) {
    std::error_code unknown;
    MILLPOND_RETURN_IF_ERROR(CheckType(entry->path(), entry->status(unknown).type()));
  }
  return {};
}

}  // namespace

Status CheckRegularFile(const std::string& path) {
  std::error_code unknown;
  return CheckType(path, fs::status(path, unknown).type());
}

Status CheckRegularFiles(const std::string& directory) {
  MILLPOND_RETURN_IF_ERROR(CheckEntries<fs::recursive_directory_iterator>(directory));
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_symlink(unknown) && entry->is_directory(unknown)) {
      MILLPOND_RETURN_IF_ERROR(CheckEntries<fs::directory_iterator>(entry->path()));
    }
  }
  return {};
}

}  // namespace millpond::base
