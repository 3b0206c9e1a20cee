#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "native/base/status.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/ahead_compiler.h"
#include "native/pjrt/executable.h"

namespace millpond::pjrt {

// Executables on disk, so that a version whose graph was compiled before is only an upload.
//
// A file holds the accelerator's target and the program that it was compiled from, and both
// are compared, so a file is never taken for another one. A file that cannot be read or loaded is
// made anew. Files are written beside and renamed, with mode 0600. Nothing is deleted: the operator
// may delete any file at any time.
//
// Thread: any number at once, also of several processes.
class ExecutableCache {
 public:
  // An empty `directory` caches nothing.
  explicit ExecutableCache(std::string directory) : directory_(std::move(directory)) {}

  // Returns the executable of `hlo`, loaded or compiled, or the error of the compilation. An
  // executable that was compiled without autotuning is not loaded while `accelerator` autotunes, so
  // a program that a start needs is autotuned.
  base::StatusOr<std::unique_ptr<Executable>> FindOrCompile(const Accelerator& accelerator,
                                                            std::string_view hlo) const;

  // Compiles `hlo` into the cache, unless it is there. Returns the error of the compilation, or of
  // the file that cannot be written.
  base::Status Fill(const AheadCompiler& compiler, std::string_view hlo) const;

 private:
  std::unique_ptr<Executable> Find(const Accelerator& accelerator, std::string_view header) const;

  const std::string directory_;
};

}  // namespace millpond::pjrt
