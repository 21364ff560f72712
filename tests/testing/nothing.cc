// The source file of targets of which only the precompiled header matters.
int main() {
  return 0;
}
