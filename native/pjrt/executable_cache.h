#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "native/base/status.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/ahead_compiler.h"
#include "native/pjrt/executable.h"

namespace millpond::pjrt {

// The executable of a program.
struct FoundProgram {
  std::shared_ptr<const Executable> executable;
  bool is_autotuned = true;  // false if it was compiled for a GPU without autotuning
  bool is_compiled = false;  // true if it was compiled now
};

// The errors of one program that is compiled into a cache.
struct Filled {
  base::Status compiled;
  base::Status written;  // the file's error
};

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
  class Origin;
  class Program;

  // An empty `directory` caches nothing.
  explicit ExecutableCache(std::string directory) : directory_(std::move(directory)) {}

  // Returns the executable of `hlo`, which a version has already, or which is loaded or compiled,
  // or the error of the compilation. An executable that an accelerator compiled without autotuning
  // is not loaded while `accelerator` autotunes, so a start autotunes the programs that it needs.
  // An executable for a topology is loaded all the same, so that a start need not compile.
  base::StatusOr<FoundProgram> FindOrCompile(const Accelerator& accelerator,
                                             std::string_view hlo) const;
  // Says whether FindOrCompile finds what it need not compile. A file that is there is taken for
  // one that can be loaded.
  bool Has(const Accelerator& accelerator, std::string_view hlo) const;
  // Loads the autotuned executable of `hlo`. Returns NOT_FOUND if there is none, RESOURCE_EXHAUSTED
  // if the accelerator has no memory for it, and the plugin's error if it cannot be loaded.
  base::StatusOr<SharedExecutables::Pointer> FindAutotuned(const Accelerator& accelerator,
                                                           std::string_view hlo) const;
  // Says whether the file of `hlo` is there, other than one without autotuning.
  bool HasAutotuned(const Accelerator& accelerator, std::string_view hlo) const;

  // Compiles `hlo` into the cache, unless it is there.
  Filled Fill(const AheadCompiler& compiler, std::string_view hlo) const;

 private:
  base::StatusOr<SharedExecutables::Pointer> Find(const Accelerator& accelerator,
                                                  const Origin& origin) const;
  bool HasFile(const Origin& origin) const;
  void Keep(const Origin& origin, const Executable& executable) const;

  const std::string directory_;
};

}  // namespace millpond::pjrt
