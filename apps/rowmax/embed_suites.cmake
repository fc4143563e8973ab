# Writes ${OUTPUT}: the case files ${FILES} as string literals. Run by the build with cmake -P.
set(text "#include \"suites.h\"\n\nnamespace rowmax::app {\nnamespace {\nconstexpr Suite kFiles[] = {\n")
foreach(file IN LISTS FILES)
  get_filename_component(name "${file}" NAME_WE)
  file(READ "${file}" content)
  string(APPEND text "    {\"${name}\", R\"cases(${content})cases\"},\n")
endforeach()
string(APPEND text "};\n}  // namespace\nconst std::span<const Suite> kSuites(kFiles);\n}  // namespace rowmax::app\n")
file(WRITE "${OUTPUT}" "${text}")
