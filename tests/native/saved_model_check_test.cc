#include "native/tf/saved_model_check.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"

namespace millpond::tf {
namespace {

using base::Code;
using testing::CutFile;
using testing::ReadFile;
using testing::TemporaryDirectory;
using testing::Vector;
using testing::WriteFile;

constexpr char kIndex[] = "variables/variables.index";
constexpr char kShard[] = "variables/variables.data-00000-of-00001";

// While it lives, this process opens no file.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_ = {};
};

class SavedModelCheck : public ::testing::Test {
 protected:
  std::string File(const std::string& name) const { return directory_.File(name); }
  base::Status Check() const { return CheckSavedModel(directory_.path()).status(); }
  void ExpectRefused(Code code, const std::string& in_message) const {
    const base::Status refused = Check();
    EXPECT_EQ(refused.code(), code) << refused.message();
    EXPECT_NE(refused.message().find(in_message), std::string::npos) << refused.message();
  }
  void WriteVariableModel() const {
    testing::VariableModel(Vector<float>({2, 3})).Write(directory_.path());
  }

  const TemporaryDirectory directory_;
};

TEST_F(SavedModelCheck, AGraphWithoutVariablesIsCompleteWithoutThem) {
  testing::DoublingModel().Write(directory_.path());
  EXPECT_TRUE(Check().ok()) << Check().message();
}

TEST_F(SavedModelCheck, AGraphWithVariablesIsCompleteWithIndexAndShards) {
  WriteVariableModel();
  EXPECT_TRUE(Check().ok()) << Check().message();
}

TEST_F(SavedModelCheck, AGraphAsTextIsTakenToo) {
  std::string text;
  testing::SavedModelFiles files = testing::DoublingModel();
  ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(files.proto(), &text));
  WriteFile(File("saved_model.pbtxt"), text);
  EXPECT_TRUE(Check().ok()) << Check().message();
  CutFile(File("saved_model.pbtxt"), text.size() / 2);
  ExpectRefused(Code::kDataLoss, directory_.path());
}

TEST_F(SavedModelCheck, AnEmptyOrMissingDirectoryHasNoGraph) {
  ExpectRefused(Code::kFailedPrecondition, "neither saved_model.pb nor saved_model.pbtxt");
  EXPECT_EQ(CheckSavedModel(File("nowhere")).status().code(), Code::kFailedPrecondition);
}

TEST_F(SavedModelCheck, APipeInAnyPlaceIsRefusedAndNotOpened) {
  WriteVariableModel();
  // TensorFlow's loader and the warm-up read the last two.
  for (const char* const name : {"saved_model.pb", kIndex, kShard, "fingerprint.pb", "extra"}) {
    const std::string path = File(name);
    const std::string aside = directory_.File("aside");
    const bool is_there = std::filesystem::exists(path);
    if (is_there) std::filesystem::rename(path, aside);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    ExpectRefused(Code::kFailedPrecondition, std::string(name) + " is a named pipe");
    std::filesystem::remove(path);
    if (is_there) std::filesystem::rename(aside, path);
  }
  EXPECT_TRUE(Check().ok()) << Check().message();
}

TEST_F(SavedModelCheck, AGraphCutShortAtAnyByteIsRefused) {
  testing::DoublingModel().Write(directory_.path());
  const std::string whole = ReadFile(File("saved_model.pb"));
  for (size_t size = whole.size(); size-- > 0;) {
    CutFile(File("saved_model.pb"), size);
    ASSERT_EQ(Check().code(), Code::kDataLoss) << size << " of " << whole.size();
  }
}

TEST_F(SavedModelCheck, EachMissingFileIsNamed) {
  for (const char* missing : {kIndex, kShard}) {
    WriteVariableModel();
    std::filesystem::remove(File(missing));
    ExpectRefused(Code::kFailedPrecondition, std::string(missing) + " is missing");
  }
  std::filesystem::remove_all(File("variables"));
  ExpectRefused(Code::kFailedPrecondition, "and the graph has variables");
}

TEST_F(SavedModelCheck, AnIndexCutShortAtAnyByteIsRefused) {
  WriteVariableModel();
  const std::string whole = ReadFile(File(kIndex));
  for (size_t size = whole.size(); size-- > 0;) {
    CutFile(File(kIndex), size);
    ASSERT_EQ(Check().code(), Code::kDataLoss) << size << " of " << whole.size();
  }
}

TEST_F(SavedModelCheck, AShardCutShortAtAnyByteIsRefusedWithBothSizes) {
  WriteVariableModel();
  for (size_t size = 8; size-- > 0;) {
    CutFile(File(kShard), size);
    ExpectRefused(Code::kFailedPrecondition,
                  std::to_string(size) + " bytes, and variables.index names 8");
  }
}

TEST_F(SavedModelCheck, AVariableWithinAFunctionCountsToo) {
  testing::SavedModelFiles files = testing::DoublingModel();
  auto* const function = files.meta_graph().mutable_graph_def()->mutable_library()->add_function();
  function->mutable_signature()->set_name("f");
  function->add_node_def()->set_op("VarHandleOp");
  files.Write(directory_.path());
  ExpectRefused(Code::kFailedPrecondition, "and the graph has variables");
}

TEST_F(SavedModelCheck, AMissingAssetIsNamedAndNoError) {
  testing::TableModel().Write(directory_.path());
  EXPECT_EQ(CheckSavedModel(directory_.path()).value(), std::vector<std::string>());
  std::filesystem::remove(File("assets/words.txt"));
  EXPECT_EQ(CheckSavedModel(directory_.path()).value(),
            std::vector<std::string>({"assets/words.txt"}));
}

TEST_F(SavedModelCheck, AMissingVariableComesBeforeAMissingAsset) {
  testing::SavedModelFiles files = testing::VariableModel(Vector<float>({2, 3}));
  files.AddAsset("words", "words.txt", "a");
  files.Write(directory_.path());
  std::filesystem::remove(File("assets/words.txt"));
  EXPECT_TRUE(Check().ok()) << Check().message();
  std::filesystem::remove(File(kIndex));
  ExpectRefused(Code::kFailedPrecondition, "variables.index is missing");
}

TEST_F(SavedModelCheck, AFileOfOtherBytesIsRefused) {
  WriteFile(File("saved_model.pb"), "not a protobuf");
  ExpectRefused(Code::kDataLoss, "does not parse");
  WriteVariableModel();
  WriteFile(File(kIndex), std::string(1'000, 'x'));
  ExpectRefused(Code::kDataLoss, "variables.index does not parse");
}

// A process without file descriptors says nothing about the file: the same one is read once there
// are some.
TEST_F(SavedModelCheck, AFileThatCannotBeOpenedIsNotDamaged) {
  WriteVariableModel();
  {
    const NoDescriptors none;
    ExpectRefused(Code::kResourceExhausted, "reading the graph of ");
  }
  EXPECT_TRUE(Check().ok()) << Check().message();
}

}  // namespace
}  // namespace millpond::tf
