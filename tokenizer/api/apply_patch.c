/*
 * apply_patch.c - the one custom tool that the official codec knows.
 *
 * The model was trained with this description, whatever the client says in
 * its own, and with one parameter that holds the patch.  V4's lacks the empty
 * line before the first example.
 */

#include "req.h"

#include <string.h>

static const char apply_patch_text[] =
    "Use the `apply_patch` tool to edit files.\n"
    "Your patch language is a stripped\342\200\221down,"
    " file\342\200\221oriented diff format designed to be easy to parse and"
    " safe to apply. You can think of it as a high\342\200\221level"
    " envelope:\n"
    "\n"
    "*** Begin Patch\n"
    "[ one or more file sections ]\n"
    "*** End Patch\n"
    "\n"
    "Within that envelope, you get a sequence of file operations.\n"
    "You MUST include a header to specify the action you are taking.\n"
    "Each operation starts with one of three headers:\n"
    "\n"
    "*** Add File: <path> - create a new file. Every following line is a +"
    " line (the initial contents).\n"
    "*** Delete File: <path> - remove an existing file. Nothing follows.\n"
    "*** Update File: <path> - patch an existing file in place (optionally"
    " with a rename).\n"
    "\n"
    "May be immediately followed by *** Move to: <new path> if you want to"
    " rename the file.\n"
    "Then one or more \342\200\234hunks\342\200\235, each introduced by @@"
    " (optionally followed by a hunk header).\n"
    "Within a hunk each line starts with:\n"
    "\n"
    "For instructions on [context_before] and [context_after]:\n"
    "- By default, show 3 lines of code immediately above and 3 lines"
    " immediately below each change. If a change is within 3 lines of a"
    " previous change, do NOT duplicate the first change\342\200\231s"
    " [context_after] lines in the second change\342\200\231s"
    " [context_before] lines.\n"
    "- If 3 lines of context is insufficient to uniquely identify the"
    " snippet of code within the file, use the @@ operator to indicate the"
    " class or function to which the snippet belongs. For instance, we"
    " might have:\n"
    "@@ class BaseClass\n"
    "[3 lines of pre-context]\n"
    "- [old_code]\n"
    "+ [new_code]\n"
    "[3 lines of post-context]\n"
    "\n"
    "- If a code block is repeated so many times in a class or function"
    " such that even a single `@@` statement and 3 lines of context cannot"
    " uniquely identify the snippet of code, you can use multiple `@@`"
    " statements to jump to the right context. For instance:\n"
    "\n"
    "@@ class BaseClass\n"
    "@@ \t def method():\n"
    "[3 lines of pre-context]\n"
    "- [old_code]\n"
    "+ [new_code]\n"
    "[3 lines of post-context]\n"
    "\n"
    "The full grammar definition is below:\n"
    "Patch := Begin { FileOp } End\n"
    "Begin := \"*** Begin Patch\" NEWLINE\n"
    "End := \"*** End Patch\" NEWLINE\n"
    "FileOp := AddFile | DeleteFile | UpdateFile\n"
    "AddFile := \"*** Add File: \" path NEWLINE { \"+\" line NEWLINE }\n"
    "DeleteFile := \"*** Delete File: \" path NEWLINE\n"
    "UpdateFile := \"*** Update File: \" path NEWLINE [ MoveTo ] { Hunk }\n"
    "MoveTo := \"*** Move to: \" newPath NEWLINE\n"
    "Hunk := \"@@\" [ header ] NEWLINE { HunkLine } [ \"*** End of File\""
    " NEWLINE ]\n"
    "HunkLine := (\" \" | \"-\" | \"+\") text NEWLINE\n"
    "\n"
    "A full patch can combine several operations:\n"
    "\n"
    "*** Begin Patch\n"
    "*** Add File: hello.txt\n"
    "+Hello world\n"
    "*** Update File: src/app.py\n"
    "*** Move to: src/main.py\n"
    "@@ def greet():\n"
    "-print(\"Hi\")\n"
    "+print(\"Hello, world!\")\n"
    "*** Delete File: obsolete.txt\n"
    "*** End Patch\n"
    "\n"
    "It is important to remember:\n"
    "\n"
    "- You must include a header with your intended action"
    " (Add/Delete/Update)\n"
    "- You must prefix new lines with `+` even when creating a new file\n"
    "- File references can only be relative, NEVER ABSOLUTE.\n";

#define NAMED(n)  .key = { n, sizeof(n) - 1 }
#define TEXT(t)   .type = DI_JSON_STRING, .v.str = { t, sizeof(t) - 1 }

static di_json_t input_description = {
    NAMED("description"),
    TEXT("The entire contents of the apply_patch command (the *** Begin Patch"
         " ... *** End Patch envelope)."),
};
static di_json_t input_type = { NAMED("type"), TEXT("string"),
                                .next = &input_description };
static di_json_t input = { NAMED("input"), .type = DI_JSON_OBJECT,
                           .v.list = { &input_type, 2 } };
static di_json_t required_input = { TEXT("input") };
static di_json_t required = { NAMED("required"), .type = DI_JSON_ARRAY,
                              .v.list = { &required_input, 1 } };
static di_json_t properties = { NAMED("properties"), .type = DI_JSON_OBJECT,
                                .v.list = { &input, 1 }, .next = &required };
static di_json_t additional = { NAMED("additionalProperties"),
                                .type = DI_JSON_FALSE, .next = &properties };
static di_json_t type = { NAMED("type"), TEXT("object"), .next = &additional };

const di_json_t di_rq_text_schema = { .type = DI_JSON_OBJECT,
                                      .v.list = { &type, 4 } };

/* The same without that description. */
static di_json_t text_type = { NAMED("type"), TEXT("string") };
static di_json_t text_input = { NAMED("input"), .type = DI_JSON_OBJECT,
                                .v.list = { &text_type, 1 } };
static di_json_t text_properties = { NAMED("properties"),
                                     .type = DI_JSON_OBJECT,
                                     .v.list = { &text_input, 1 },
                                     .next = &required };
static di_json_t text_object = { NAMED("type"), TEXT("object"),
                                 .next = &text_properties };

const di_json_t di_rq_text_parameters = { .type = DI_JSON_OBJECT,
                                          .v.list = { &text_object, 3 } };

static di_json_t no_properties = { NAMED("additionalProperties"),
                                   .type = DI_JSON_FALSE };
static di_json_t no_object = { NAMED("type"), TEXT("object"),
                               .next = &no_properties };

const di_json_t di_rq_no_parameters = { .type = DI_JSON_OBJECT,
                                        .v.list = { &no_object, 2 } };

int
di_rq_apply_patch(di_rq_t *rq, di_tool_t *t)
{
    const char *example = strstr(apply_patch_text, "\n\n*** Begin") + 1;

    t->description = (di_str_t) { apply_patch_text,
                                  sizeof(apply_patch_text) - 1 };
    t->parameters = &di_rq_text_schema;

    if (rq->v41)
        return DI_OK;

    return di_rq_print(rq, &t->description, "%.*s%s",
                       (int) (example - apply_patch_text), apply_patch_text,
                       example + 1);
}
