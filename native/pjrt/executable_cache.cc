#include "native/pjrt/executable_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

namespace millpond::pjrt {
namespace {

constexpr std::string_view kMagic = "millpond executable 1\n";

// Returns the end of the target of an executable. The files of one program lie beside each other,
// because another process or a later start may make an autotuned one.
std::string_view EndOfTarget(AheadCompiler::Result result) {
  switch (result) {
    case AheadCompiler::Result::kForTopology:
      return ", for a topology";
    case AheadCompiler::Result::kForLoad:
      return ", not autotuned";
    default:
      return "";
  }
}

using Result = AheadCompiler::Result;

Result CompiledBy(const Accelerator& accelerator) {
  return accelerator.autotunes() ? Result::kAutotuned : Result::kForLoad;
}

// The executables that `accelerator` takes now, the best one first.
std::vector<Result> TakenBy(const Accelerator& accelerator) {
  if (accelerator.autotunes()) return {Result::kAutotuned, Result::kForTopology};
  return {Result::kAutotuned, Result::kForTopology, Result::kForLoad};
}

// FNV-1a: http://www.isthe.com/chongo/tech/comp/fnv/. Only names a file, whose content is compared.
constexpr uint64_t kNoBytesHash = 0xcbf29ce484222325;
uint64_t Hash(std::string_view bytes, uint64_t hash = kNoBytesHash) {
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return hash;
}

// A second hash, which has nothing in common with the first: the words of the program, mixed by
// the finalizer of splitmix64.
uint64_t HashWords(std::string_view bytes) {
  uint64_t hash = bytes.size();
  while (!bytes.empty()) {
    uint64_t word = 0;
    const size_t count = std::min(bytes.size(), sizeof(word));
    std::memcpy(&word, bytes.data(), count);
    bytes.remove_prefix(count);
    hash = (hash ^ word) + 0x9e3779b97f4a7c15;
    hash = (hash ^ (hash >> 30U)) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ (hash >> 27U)) * 0x94d049bb133111eb;
    hash ^= hash >> 31U;
  }
  return hash;
}

std::string HexOf(uint64_t hash) {
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx",
                static_cast<unsigned long long>(hash));  // NOLINT(google-runtime-int)
  return hex;
}

// The end of the file of `executable`, because a plugin may crash over bytes that are not its own.
std::string Seal(std::string_view executable) { return std::to_string(Hash(executable)); }

}  // namespace

// A program, and its part of the name of its executables in memory: 128 bits of two hashes, which
// take a while for a program of megabytes. Borrows the program.
class ExecutableCache::Program {
 public:
  explicit Program(std::string_view hlo)
      : hlo_(hlo), name_(HexOf(Hash(hlo)) + HexOf(HashWords(hlo))) {}

  std::string_view hlo() const { return hlo_; }
  const std::string& name() const { return name_; }

 private:
  const std::string_view hlo_;
  const std::string name_;
};

// The start of the file of a program for an accelerator, which names the file: the executable
// follows it. Borrows the program.
class ExecutableCache::Origin {
 public:
  Origin(const std::string& accelerator, AheadCompiler::Result result, const Program& program)
      : program_(program) {
    const std::string target = accelerator + std::string(EndOfTarget(result));
    head_ = std::string(kMagic) + std::to_string(target.size()) + ' ' +
            std::to_string(hlo().size()) + '\n' + target;
  }

  std::string_view head() const { return head_; }
  std::string_view hlo() const { return program_.hlo(); }
  // The name among the executables in memory. It has the program by its size and its hashes, so
  // that no program is kept for its name's sake.
  std::string Name() const { return head_ + program_.name(); }
  std::string PathIn(const std::string& directory) const {
    return directory + '/' + HexOf(Hash(hlo(), Hash(head_))) + ".pjrt";
  }
  // Removes the start from `bytes`. Returns false if they begin in another way.
  bool RemoveFrom(std::string_view* bytes) const {
    for (const std::string_view part : {head(), hlo()}) {
      if (bytes->substr(0, part.size()) != part) return false;
      bytes->remove_prefix(part.size());
    }
    return true;
  }

 private:
  const Program& program_;
  std::string head_;
};

namespace {

bool WriteAll(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written <= 0) return false;
    bytes.remove_prefix(written);
  }
  return true;
}

base::Status NotWritten(const std::string& path) {
  return base::FailedPrecondition(path +
                                  " cannot be written: " + std::generic_category().message(errno));
}

// Returns the executable in the file; nothing if it is not whole, or is another program's.
std::optional<std::string> Read(const std::string& path, const ExecutableCache::Origin& origin) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) return {};
  const std::string bytes = content.str();
  std::string_view sealed = bytes;
  if (!origin.RemoveFrom(&sealed)) return {};
  const size_t end = sealed.rfind('\n');
  if (end == std::string_view::npos || sealed.substr(end + 1) != Seal(sealed.substr(0, end))) {
    return {};
  }
  return std::string(sealed.substr(0, end));
}

base::Status Write(const std::string& path, const ExecutableCache::Origin& origin,
                   std::string_view executable) {
  std::string beside = path + ".XXXXXX";
  const int file = mkostemp(beside.data(), O_CLOEXEC);
  if (file < 0) return NotWritten(path);
  const std::string end = "\n" + Seal(executable);
  const bool is_written = WriteAll(file, origin.head()) && WriteAll(file, origin.hlo()) &&
                          WriteAll(file, executable) && WriteAll(file, end);
  if (close(file) == 0 && is_written && rename(beside.c_str(), path.c_str()) == 0) return {};
  base::Status not_written = NotWritten(path);
  unlink(beside.c_str());
  return not_written;
}

}  // namespace

base::StatusOr<FoundProgram> ExecutableCache::FindOrCompile(const Accelerator& accelerator,
                                                            std::string_view hlo) const {
  const std::string& target = accelerator.target();
  const Program program(hlo);
  for (const Result result : TakenBy(accelerator)) {
    auto found = Find(accelerator, Origin(target, result, program));
    if (found.ok()) return FoundProgram{std::move(found.value()), result == Result::kAutotuned};
  }
  const Result result = CompiledBy(accelerator);
  const bool is_autotuned = result == Result::kAutotuned;
  const Origin origin(target, result, program);
  base::StatusOr<std::unique_ptr<Executable>> compiled = accelerator.Compile(hlo, is_autotuned);
  if (!compiled.ok()) return compiled.status();
  Keep(origin, *compiled.value());
  return FoundProgram{accelerator.executables().Share(origin.Name(), std::move(compiled.value())),
                      is_autotuned, /*is_compiled=*/true};
}

bool ExecutableCache::Has(const Accelerator& accelerator, std::string_view hlo) const {
  const std::vector<Result> taken = TakenBy(accelerator);
  const Program program(hlo);
  return std::any_of(taken.begin(), taken.end(), [&](Result result) {
    const Origin origin(accelerator.target(), result, program);
    return accelerator.executables().Has(origin.Name()) || HasFile(origin);
  });
}

base::StatusOr<SharedExecutables::Pointer> ExecutableCache::FindAutotuned(
    const Accelerator& accelerator, std::string_view hlo) const {
  const Program program(hlo);
  return Find(accelerator, Origin(accelerator.target(), Result::kAutotuned, program));
}

bool ExecutableCache::HasAutotuned(const Accelerator& accelerator, std::string_view hlo) const {
  const Program program(hlo);
  return HasFile(Origin(accelerator.target(), Result::kAutotuned, program));
}

bool ExecutableCache::HasFile(const Origin& origin) const {
  return !directory_.empty() && Read(origin.PathIn(directory_), origin).has_value();
}

// A file that cannot be written costs the next load a compilation, and is no error of this one.
void ExecutableCache::Keep(const Origin& origin, const Executable& executable) const {
  if (directory_.empty()) return;
  const base::StatusOr<std::string> serialized = executable.Serialize();
  if (!serialized.ok()) return;
  static_cast<void>(Write(origin.PathIn(directory_), origin, serialized.value()));
}

// Returns the executable that a version has, or that in the file; NOT_FOUND, or why it is not
// loaded.
base::StatusOr<SharedExecutables::Pointer> ExecutableCache::Find(const Accelerator& accelerator,
                                                                 const Origin& origin) const {
  const std::string name = origin.Name();
  SharedExecutables::Pointer shared = accelerator.executables().Find(name);
  if (shared != nullptr) return shared;
  std::optional<std::string> cached;
  if (!directory_.empty()) cached = Read(origin.PathIn(directory_), origin);
  if (!cached.has_value()) return base::NotFound("it is not in the cache");
  auto loaded = accelerator.LoadExecutable(*cached);
  if (!loaded.ok()) return loaded.status();
  return accelerator.executables().Share(name, std::move(loaded.value()));
}

Filled ExecutableCache::Fill(const AheadCompiler& compiler, std::string_view hlo) const {
  const Program program(hlo);
  const Origin origin(compiler.target(), compiler.result(), program);
  const std::string path = origin.PathIn(directory_);
  if (Read(path, origin)) return {};
  const base::StatusOr<std::string> executable = compiler.Compile(hlo);
  if (!executable.ok()) return {executable.status(), {}};
  return {{}, Write(path, origin, executable.value())};
}

}  // namespace millpond::pjrt
