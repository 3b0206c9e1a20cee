#include "native/pjrt/executable_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
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
uint64_t Hash(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return hash;
}

// Returns the start of the file of `hlo`: the executable follows it.
std::string Header(const std::string& accelerator, AheadCompiler::Result result,
                   std::string_view hlo) {
  const std::string target = accelerator + std::string(EndOfTarget(result));
  std::ostringstream header;
  header << kMagic << target.size() << ' ' << hlo.size() << '\n' << target << hlo;
  return header.str();
}

std::string PathOf(const std::string& directory, std::string_view header) {
  char name[32];
  std::snprintf(name, sizeof(name), "/%016llx.pjrt",
                static_cast<unsigned long long>(Hash(header)));  // NOLINT(google-runtime-int)
  return directory + name;
}

// The end of the file of `executable`, because a plugin may crash over bytes that are not its own.
std::string Seal(std::string_view executable) { return std::to_string(Hash(executable)); }

// Returns the executable in the file; nothing if it is not whole, or is another program's.
std::optional<std::string> Read(const std::string& path, std::string_view header) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) return {};
  const std::string bytes = content.str();
  if (bytes.compare(0, header.size(), header) != 0) return {};
  const std::string_view sealed = std::string_view(bytes).substr(header.size());
  const size_t end = sealed.rfind('\n');
  if (end == std::string_view::npos || sealed.substr(end + 1) != Seal(sealed.substr(0, end))) {
    return {};
  }
  return std::string(sealed.substr(0, end));
}

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

base::Status Write(const std::string& path, std::string_view header, std::string_view executable) {
  std::string beside = path + ".XXXXXX";
  const int file = mkostemp(beside.data(), O_CLOEXEC);
  if (file < 0) return NotWritten(path);
  const std::string end = "\n" + Seal(executable);
  const bool is_written =
      WriteAll(file, header) && WriteAll(file, executable) && WriteAll(file, end);
  if (close(file) == 0 && is_written && rename(beside.c_str(), path.c_str()) == 0) return {};
  base::Status not_written = NotWritten(path);
  unlink(beside.c_str());
  return not_written;
}

}  // namespace

base::StatusOr<FoundProgram> ExecutableCache::FindOrCompile(const Accelerator& accelerator,
                                                            std::string_view hlo) const {
  const std::string& target = accelerator.target();
  for (const Result result : TakenBy(accelerator)) {
    SharedExecutables::Pointer found = Find(accelerator, Header(target, result, hlo));
    if (found != nullptr) return FoundProgram{std::move(found), result == Result::kAutotuned};
  }
  const Result result = CompiledBy(accelerator);
  const bool is_autotuned = result == Result::kAutotuned;
  const std::string header = Header(target, result, hlo);
  base::StatusOr<std::unique_ptr<Executable>> compiled = accelerator.Compile(hlo, is_autotuned);
  if (!compiled.ok()) return compiled.status();
  Keep(header, *compiled.value());
  return FoundProgram{accelerator.executables().Share(header, std::move(compiled.value())),
                      is_autotuned, /*is_compiled=*/true};
}

bool ExecutableCache::Has(const Accelerator& accelerator, std::string_view hlo) const {
  const std::vector<Result> taken = TakenBy(accelerator);
  return std::any_of(taken.begin(), taken.end(), [&](Result result) {
    const std::string header = Header(accelerator.target(), result, hlo);
    return accelerator.executables().Has(header) || HasFile(header);
  });
}

SharedExecutables::Pointer ExecutableCache::FindAutotuned(const Accelerator& accelerator,
                                                          std::string_view hlo) const {
  return Find(accelerator, Header(accelerator.target(), Result::kAutotuned, hlo));
}

bool ExecutableCache::HasAutotuned(const Accelerator& accelerator, std::string_view hlo) const {
  return HasFile(Header(accelerator.target(), Result::kAutotuned, hlo));
}

bool ExecutableCache::HasFile(std::string_view header) const {
  return !directory_.empty() && Read(PathOf(directory_, header), header).has_value();
}

// A file that cannot be written costs the next load a compilation, and is no error of this one.
void ExecutableCache::Keep(std::string_view header, const Executable& executable) const {
  if (directory_.empty()) return;
  const base::StatusOr<std::string> serialized = executable.Serialize();
  if (!serialized.ok()) return;
  static_cast<void>(Write(PathOf(directory_, header), header, serialized.value()));
}

// Returns the executable that a version has, or that in the file with this header; null if none can
// be loaded.
SharedExecutables::Pointer ExecutableCache::Find(const Accelerator& accelerator,
                                                 std::string_view header) const {
  SharedExecutables::Pointer shared = accelerator.executables().Find(header);
  if (shared != nullptr || directory_.empty()) return shared;
  const std::optional<std::string> cached = Read(PathOf(directory_, header), header);
  if (!cached.has_value()) return nullptr;
  auto loaded = accelerator.LoadExecutable(*cached);
  if (!loaded.ok()) return nullptr;
  return accelerator.executables().Share(header, std::move(loaded.value()));
}

Filled ExecutableCache::Fill(const AheadCompiler& compiler, std::string_view hlo) const {
  const std::string header = Header(compiler.target(), compiler.result(), hlo);
  const std::string path = PathOf(directory_, header);
  if (Read(path, header)) return {};
  const base::StatusOr<std::string> executable = compiler.Compile(hlo);
  if (!executable.ok()) return {executable.status(), {}};
  return {{}, Write(path, header, executable.value())};
}

}  // namespace millpond::pjrt
