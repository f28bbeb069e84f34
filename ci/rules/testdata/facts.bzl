"""What a target of this package says about itself, for a test to compare."""

def facts(name):
    """Lines with the facts by which machines and schedulers choose the target `name`, which is declared above."""
    rule = native.existing_rule(name)
    lines = ["tag " + tag for tag in sorted(rule["tags"])]
    for attribute in ["env", "exec_properties"]:
        for key in sorted(rule[attribute].keys()):
            lines.append("%s %s=%s" % (attribute, key, rule[attribute][key]))
    return lines
